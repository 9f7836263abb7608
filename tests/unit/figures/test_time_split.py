"""The stacked figure of a step's time: its parts, its remarks and what it cannot tell."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from pipeline.metrics.format import significant
from pipeline.study.profiling import IN_STEP
from tests.fake_records import make_table, row_of
from tests.unit.figures.drawn import draw, words

PROFILED = {"profile": {"steps": 8}, "repeats": 2}


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return make_table(**PROFILED)


@pytest.fixture(scope="module")
def figure(table: pd.DataFrame) -> Figure:
    return draw("time_split", table)


def parts(figure: Figure, panel: int, place: int) -> list[Rectangle]:
    """The pieces of one bar, from left to right."""
    found = [p for p in figure.axes[panel].patches if isinstance(p, Rectangle)]
    return [p for p in found if abs(p.get_y() + p.get_height() / 2 - place) < 0.1]


def value(table: pd.DataFrame, metric: str, cell: str, nodes: int) -> float:
    return float(row_of(table, metric, cell, nodes)["value"])


def test_a_bar_is_the_phases_end_to_end_as_shares_of_the_step(table, figure) -> None:
    # The cells that ran, in the order of the study: single, sps, dps, horovod, dps-amp.
    bar = parts(figure, panel=2, place=2)
    spent = [value(table, f"phase_mean_seconds:{name}", "dps", 4) for name in IN_STEP]
    expected = [100 * seconds / sum(spent) for seconds in spent]
    assert [p.get_width() for p in bar] == pytest.approx(expected)
    assert [p.get_x() for p in bar] == pytest.approx([0, *np.cumsum(expected)[:-1]])
    share = value(table, "phase_share:communication", "dps", 4)
    beside = [text.get_text().strip() for text in figure.axes[2].texts]
    assert f"{100 * share:.0f} %, {significant(1000 * sum(spent), 2)} ms" in beside
    assert figure.axes[0].texts[0].get_text().startswith("0 %, ")
    assert parts(figure, panel=1, place=0) == [], "the single device ran on one node alone"


def test_it_says_what_the_bars_are_and_what_they_cannot_tell(table, figure) -> None:
    said = words(figure)
    assert "exposed communication" in said
    assert "Bars: means over 8 steps of profiled runs, of each its slowest rank." in said
    assert re.search(r"Reading the batch, before the step, took [\d.]+ ms at most", said)
    own = table.copy()
    without_marks(own)
    assert "Without phases, drawn as rest: dps." in words(draw("time_split", own))
    unprofiled = draw("time_split", make_table(repeats=1))
    assert "no profiled run finished" in words(unprofiled)


def without_marks(table: pd.DataFrame) -> None:
    marked = table["metric"].str.startswith("phase_mean_seconds:") & (table["cell"] == "dps")
    table.loc[marked & ~table["metric"].str.endswith((":rest", ":data")), "value"] = 0.0
