"""Under six runs there is no interval and nothing is faster: over all figures and tables."""

from __future__ import annotations

import re

import pandas as pd
import pytest
from matplotlib.collections import LineCollection
from matplotlib.container import ErrorbarContainer

from pipeline import figures, tables
from pipeline.metrics.contrasts import FASTER, SLOWER
from tests.fake_records import EMULATED, made, make_table
from tests.unit.figures.drawn import draw, words

BRACKETS = re.compile(r"\[-?[\d.,]+, -?[\d.,]+\]")


@pytest.fixture(scope="module", params=[1, 5])
def table(request: pytest.FixtureRequest) -> pd.DataFrame:
    return make_table(repeats=request.param, cluster=EMULATED, profile={"steps": 8})


def test_no_table_has_an_interval_or_a_verdict(table: pd.DataFrame) -> None:
    over_runs = table[table["level"].isin(["cell", "comparison"])]
    assert over_runs.dropna(subset=["low"]).empty
    verdicts = table.loc[table["metric"] == "speed_verdict", "text"]
    assert not verdicts.isin([FASTER, SLOWER]).any() and len(verdicts)
    for name in tables.catalogue.captions:
        text = made(name, table)[1].to_csv()
        assert not BRACKETS.search(text) and not re.search(r"\d [<>](,|$)", text), text


@pytest.mark.parametrize("name", figures.catalogue.captions)
def test_no_figure_draws_one(name: str, table: pd.DataFrame) -> None:
    figure = draw(name, table)
    written = words(figure)
    assert not BRACKETS.search(written) and "95 %" not in written, written
    for axes in figure.axes:
        for bar in (one for one in axes.containers if isinstance(one, ErrorbarContainer)):
            lines = [line for line in bar.lines[2] if isinstance(line, LineCollection)]
            # What has no ends is left out of a segment.
            assert not any(len(part) > 1 for line in lines for part in line.get_segments())
