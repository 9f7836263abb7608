"""The manuscript of the paper on published points; `tests/workflow/test_points.py` makes it."""

import re
from pathlib import Path

import pytest

from pipeline.errors import SamestepError
from pipeline.paper import points
from pipeline.paper.manuscript import render, source
from pipeline.tables.points import TABLES


def test_every_table_is_shown_and_referred_to() -> None:
    text = source(points.FILE)
    assert sorted(re.findall(r'\btable\("(\w+)"\)', text)) == sorted(TABLES)
    assert set(re.findall(r'see_table\("(\w+)"\)', text)) == {*TABLES}


def test_an_unknown_name_is_an_error_that_names_the_manuscript(tmp_path: Path) -> None:
    with pytest.raises(SamestepError, match=r"paper/points.md: .*pipeline/paper/points.py"):
        render("{{ invented }}", {}, tmp_path, points.CAPTIONS, points.FILE)
