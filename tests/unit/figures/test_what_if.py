"""The figure of conditions: one point for each, in the look of its cell, no text over another."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.text import Text

from pipeline.figures import theme
from pipeline.metrics.results import Results
from tests.fake_records import CONDITIONED, PLAIN, make_study, make_table
from tests.unit.figures.drawn import draw, words

CELLS = make_study()["cells"][:4]


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return make_table(repeats=6, cluster=CONDITIONED | {"nodes": [1, 4]}, cells=CELLS)


@pytest.fixture(scope="module")
def figure(table: pd.DataFrame) -> Figure:
    return draw("what_if", table)


def points(axes: Axes) -> list[tuple[float, float, str, str]]:
    """Ratio, height, colour and marker of each point."""
    return [
        (float(np.asarray(line.get_xdata())[0]), float(np.asarray(line.get_ydata())[0]),
         to_hex(line.get_color()), str(line.get_marker()))
        for line in axes.lines
        if len(np.asarray(line.get_xdata())) == 1
    ]  # fmt: skip


def test_each_ratio_is_a_point_of_its_cell_with_its_interval(table, figure) -> None:
    found, look = Results(table).against_plain, theme.styles(Results(table))
    drawn = points(figure.axes[0])
    assert [point[0] for point in drawn] == pytest.approx(list(found["ratio"]))
    styles = [look[arm] for arm in found["arm"]]
    assert [point[2:] for point in drawn] == [(s.colour.lower(), s.marker) for s in styles]
    ends = [list(np.asarray(line.get_xdata())) for line in figure.axes[0].lines
            if line.get_marker() == "|"]  # fmt: skip
    assert ends == found[["low", "high"]].to_numpy().tolist()


def test_every_point_has_a_height_of_its_own_in_the_band_of_its_condition(table, figure) -> None:
    heights = [height for _, height, _, _ in points(figure.axes[0])]
    assert len(set(heights)) == 12 and min(np.diff(sorted(heights))) > 0.2
    assert [round(height) for height in heights] == [n for n in range(4) for _ in range(3)]
    axes, found = figure.axes[0], Results(table).against_plain
    low, high = axes.get_xlim()
    assert low < found["low"].min() and high > found["high"].max()
    assert 2 <= len(axes.get_xticks()) <= 9 and 1.0 in axes.get_xticks()


def test_it_says_what_the_conditions_are_and_what_they_are_held_against(figure: Figure) -> None:
    text = words(figure)
    for part in ("straggler one node at 0.5 speed", "jitter 0.3",
                  "asymmetric receives 250 Mbit/s", "oversubscribed uplink 1 Gbit/s"):  # fmt: skip
        assert part in text
    assert "jitter jitter" not in text and "Without a condition: links of 1 Gbit/s." in text
    assert "Bars: 95 % interval of a ratio of medians of 6 and 6 repeats." in text


def visible_ticks(axes: Axes) -> list[Text]:
    low, high = axes.get_xlim()
    return [text for text in axes.get_xticklabels() if low <= text.get_position()[0] <= high]


def overlapping(figure: Figure) -> list[tuple[str, str]]:
    """Pairs of texts that lie over one another, with what lies outside of the figure."""
    figure.draw_without_rendering()
    texts = [text for axes in figure.axes if axes.get_visible() for text in
             [*axes.texts, *visible_ticks(axes), axes.title, axes.xaxis.label]]  # fmt: skip
    texts = [text for text in texts if text.get_text() and text.get_visible()]
    shown = [(text.get_text(), text.get_window_extent()) for text in texts]
    width = figure.bbox.width
    outside = [(text, "outside") for text, box in shown if box.x0 < 0 or box.x1 > width]
    pairs = [(a, b) for i, a in enumerate(shown) for b in shown[i + 1 :]]
    return outside + [(a[0], b[0]) for a, b in pairs if a[1].overlaps(b[1])]


@pytest.mark.parametrize(
    "links",
    [
        CONDITIONED["links"],
        [PLAIN, PLAIN | {"name": "all-at-once-on-a-slow-day", "straggler": 0.25, "jitter": 1.5,
                         "receive_mbits": 62.5, "uplink_mbits": 125}],
    ],
    ids=["each alone", "all at once"],
)  # fmt: skip
def test_no_text_lies_over_another_also_on_four_node_counts(links: Any) -> None:
    cluster = CONDITIONED | {"nodes": [1, 2, 4, 8, 16], "links": links}
    work = make_study()["workload"] | {"steps": 8, "untimed_steps": 1}
    made = draw("what_if", make_table(repeats=1, cluster=cluster, cells=CELLS[:3], workload=work))
    assert [axes.get_title() for axes in made.axes] == [f"{n} nodes" for n in (2, 4, 8, 16)]
    assert overlapping(made) == []


def test_without_a_pair_that_finished_it_says_so() -> None:
    fell = make_table(repeats=1, cluster=CONDITIONED, cells=CELLS, fell_back=lambda spec: True)
    assert "no cell finished both with and without a condition" in words(draw("what_if", fell))
