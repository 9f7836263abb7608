"""Figures drawn for a narrow screen, what their points say, and names at the ends of lines."""

import re
from collections.abc import Callable
from functools import cache
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot as plt
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.text import Annotation, Text

from pipeline import figures
from pipeline.figures import points, ranked, sheets, theme
from pipeline.figures.against_nodes import _apart
from pipeline.metrics.select import pick
from tests.fake_records import EMULATED, make_table

NAMES = sorted(set(figures.names()) - {"published", "what_if"})
WITH_POINTS = sorted({*NAMES} - {"loss_step", "loss_time"})


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return make_table(repeats=2, cluster=EMULATED, profile={"steps": 2})


@pytest.fixture(scope="module")
def ranking() -> pd.DataFrame:
    """Every cell at one number of nodes alone."""
    table = make_table(repeats=2)
    single = table["cell"] == "single"
    return table[table["cell"].isna() | single | (table["nodes"] == 4)]


def draw(name: str, table: pd.DataFrame) -> Figure:
    module = __import__(f"pipeline.figures.{name}", fromlist=["draw"])
    theme.apply()
    plt.close("all")
    figure: Figure = module.draw(table)
    figure.draw_without_rendering()
    return figure


@pytest.fixture(scope="module")
def drawn(table: pd.DataFrame) -> Callable[[str], Figure]:
    """Each figure of `table` on the wide sheet, drawn once for all tests that only look at it."""
    return cache(lambda name: draw(name, table))


@pytest.mark.parametrize("name", NAMES)
def test_on_a_narrow_sheet_panels_are_stacked_and_nothing_is_cut(
    name: str, table: pd.DataFrame, drawn: Callable[[str], Figure]
) -> None:
    wide = drawn(name)
    with sheets.narrow():
        figure = draw(name, table)
    assert figure.get_figwidth() == sheets.NARROW.width
    shown = [axes for axes in figure.axes if axes.get_visible()]
    assert len(shown) == len([axes for axes in wide.axes if axes.get_visible()])
    places = [axes.get_subplotspec() for axes in shown]
    assert len({place.colspan.start for place in places if place is not None}) <= 2
    said = [t for t in figure.findobj(Text) if isinstance(t, Text) and t.get_text().strip()]
    assert min(float(text.get_fontsize()) for text in said) >= theme.LEAST_POINTS
    # In inches; what is below the panels has no part in the layout, so it is asked for itself.
    panels = figure.get_tightbbox()
    assert panels.x0 > -0.02 and panels.x1 < sheets.NARROW.width + 0.02
    for below in [*figure.texts, *figure.legends]:
        box = below.get_window_extent()
        assert box.x0 > -2 and box.x1 < figure.bbox.width + 2


def test_outside_of_it_the_sheet_is_wide_again() -> None:
    with pytest.raises(KeyError), sheets.narrow():
        raise KeyError
    assert sheets.current() is sheets.WIDE


@pytest.mark.parametrize("name", WITH_POINTS)
def test_points_say_a_number_and_what_it_is_of(name: str, drawn: Callable[[str], Figure]) -> None:
    found = [one for one in drawn(name).findobj(points.Point)]
    assert len(found) > 4
    said = [one.text for one in found if isinstance(one, points.Point)]
    assert all(re.search(r"\d", text) and "nan" not in text for text in said)


@pytest.mark.parametrize("name", ["throughput", "speedup", "overview"])
def test_cells_at_one_number_of_nodes_each_are_ranked(name: str, ranking: pd.DataFrame) -> None:
    values = pick(ranking, "cell", "tokens_per_second")
    assert ranked.fits(values)
    first = draw(name, ranking).axes[0]
    assert first.get_xlim()[0] == 0
    labels = [text.get_text() for text in first.get_yticklabels()]
    best = values.sort_values("value", ascending=False)["arm"]
    if name != "speedup":
        assert [label.partition(", ")[0] for label in labels] == list(best)
    assert "single, 1 node" in labels
    assert not ranked.fits(pick(make_table(repeats=2), "cell", "tokens_per_second"))


@pytest.mark.parametrize("heights", [
    [0.1, 0.5, 0.9], [0.5, 0.5, 0.5], [0.99, 0.99, 1.0], [0.0, 0.01], [0.3, 0.32, 0.8, 0.82], [],
])  # fmt: skip
def test_names_are_moved_apart_by_as_little_as_can_be(heights: list[float]) -> None:
    found = _apart(heights, 0.1)
    assert all(b - a >= 0.1 - 1e-9 for a, b in pairwise(found))
    assert all(-1e-9 <= height <= 1 + 1e-9 for height in found)
    if heights == [0.5, 0.5, 0.5]:
        assert found == pytest.approx([0.4, 0.5, 0.6])
    if heights == [0.1, 0.5, 0.9]:
        assert found == pytest.approx(heights)


def test_the_name_of_a_line_that_ends_before_leads_to_its_point(table: pd.DataFrame) -> None:
    early = table[~((table["arm"] == "sps") & (table["nodes"] > 1))]
    axes = draw("throughput", early).axes[0]
    names = {text.get_text(): text for text in axes.texts if text.get_text() in ("single", "sps")}
    boxes = [text.get_window_extent() for text in names.values()]
    assert len(boxes) == 2 and not boxes[0].overlaps(boxes[1])
    labels = early.dropna(subset=["arm"]).set_index("arm")["arm_label"]
    ends = [one for one in axes.findobj(points.Point) if isinstance(one, points.Point)]
    lines = [line for lines in axes.collections if isinstance(lines, LineCollection)
             for line in lines.get_segments() if len(line)]  # fmt: skip
    for name, text in names.items():
        assert isinstance(text, Annotation)
        said = f"{labels[name].iloc[0]}, 1 node:"
        [end] = [one for one in ends if one.text.startswith(said)]
        assert text.xy[0] == pytest.approx(end.x), "it stands over its own point"
        high = max(line[-1][1] for line in lines if line[0][0] == pytest.approx(end.x))
        assert high == pytest.approx(text.xy[1]), "and leads to it"


def test_more_names_than_there_is_room_for_keep_their_distance() -> None:
    found = _apart([0.5] * 14, 0.1)
    assert found == pytest.approx([0.1 * place for place in range(14)])


def test_words_in_the_colour_of_a_line_stand_out_from_white() -> None:
    for colour in theme._COLOURS:
        assert 1.05 / (theme._luminance(np.array(to_rgb(theme.ink(colour)))) + 0.05) >= 4.5
    assert theme.ink("#000000") == "#000000"
