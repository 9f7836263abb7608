"""Figures of a study whose nodes are joined by several links: a panel for each."""

from typing import Any

import pandas as pd
import pytest
from matplotlib.figure import Figure

from tests.fake_records import EMULATED, make_table
from tests.unit.figures.drawn import draw

LINKS = ["200 Mbit/s", "1 Gbit/s"]


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return make_table(repeats=2, cluster=EMULATED)


def titles(figure: Figure) -> list[str]:
    return [axes.get_title() for axes in figure.axes if axes.get_visible() and axes.get_title()]


@pytest.mark.parametrize("name", ["throughput", "speedup"])
def test_each_link_has_a_panel_with_lines_that_begin_at_one_point(name, table) -> None:
    figure = draw(name, table)
    assert titles(figure) == [f"links of {link}" for link in LINKS]
    first, second = ([_points(line) for line in axes.lines if _is_of_an_arm(line)]
                     for axes in figure.axes)  # fmt: skip
    assert len(first) == len(second) == 4
    for one, other in zip(first, second, strict=True):
        assert one[0] == other[0] and one[1:] != other[1:]


def test_one_node_is_drawn_once_before_the_panels_of_the_links(table: pd.DataFrame) -> None:
    over = [f"{n} nodes, {link}" for link in LINKS for n in (2, 4)]
    assert titles(draw("step_time", table)) == ["1 node", *over]


@pytest.mark.parametrize(
    ("fell_back", "panels"),
    [
        (lambda spec: True, ["loopback"]),
        (lambda spec: spec.cell.endswith("-fast"), ["links of 200 Mbit/s", "loopback"]),
        (lambda spec: spec.world.nodes > 1, ["", "loopback"]),
    ],
    ids=["all", "one link", "several nodes"],
)
def test_what_ran_on_the_loopback_is_one_panel_of_that_name(fell_back: Any, panels: Any) -> None:
    made = make_table(repeats=1, cluster=EMULATED, profile={"steps": 4}, fell_back=fell_back)
    for name in ("throughput", "speedup", "step_time", "time_split"):
        figure = draw(name, made)
        if name in ("throughput", "speedup"):
            assert [axes.get_title() for axes in figure.axes] == panels
        said = " ".join([*titles(figure), *(text.get_text() for text in figure.texts)])
        assert "1 Gbit/s" not in said


def _is_of_an_arm(line: Any) -> bool:
    """The caps of intervals have no line between them."""
    return len(line.get_xdata()) == 3 and line.get_linestyle() != "None"


def _points(line: Any) -> list[tuple[float, float]]:
    return list(zip(line.get_xdata(), line.get_ydata(), strict=True))
