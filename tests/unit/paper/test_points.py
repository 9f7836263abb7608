"""The manuscript of the paper on published points; `tests/workflow/test_points.py` makes it."""

import re

from pipeline.paper import points
from pipeline.paper.manuscript import source
from pipeline.tables.points import TABLES


def test_every_table_is_shown_and_referred_to() -> None:
    text = source(points.FILE)
    assert sorted(re.findall(r'\btable\("(\w+)"\)', text)) == sorted(TABLES)
    assert set(re.findall(r'see_table\("(\w+)"\)', text)) == {*TABLES}
