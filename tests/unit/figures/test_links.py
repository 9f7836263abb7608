"""Figures of a study whose nodes are joined by several links: a panel for each."""

from typing import Any

import pandas as pd
import pytest

from pipeline.figures import theme
from tests.fake_records import EMULATED, make_table

LINKS = ["200 Mbit/s", "1 Gbit/s"]


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return make_table(repeats=2, cluster=EMULATED)


@pytest.mark.parametrize("name", ["throughput", "speedup", "loss_time"])
def test_each_link_has_a_panel_with_its_own_cells(name: str, table: pd.DataFrame) -> None:
    module = __import__(f"pipeline.figures.{name}", fromlist=["draw"])
    theme.apply()
    figure = module.draw(table)
    titles = [axes.get_title() for axes in figure.axes if axes.get_title()]
    over = [next(link for link in LINKS if link in title) for title in titles]
    assert list(dict.fromkeys(over)) == LINKS
    assert len(over) == len(LINKS) * (3 if name == "loss_time" else 1)


def test_the_slower_link_gives_the_lower_throughput(table: pd.DataFrame) -> None:
    from pipeline.figures.throughput import draw

    theme.apply()
    slow, fast = (_highest(axes.lines) for axes in draw(table).axes[:2])
    assert slow < fast


def _highest(lines: Any) -> float:
    """Throughput of the fastest cell at any of the three node counts."""
    return max(float(max(line.get_ydata())) for line in lines if len(line.get_xdata()) == 3)
