"""The panels of a figure: one for each number of nodes and link, their axes and their points."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.axis import Axis, XAxis
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from pipeline.figures.theme import LEAST_POINTS, WIDTH_INCHES, Style
from pipeline.metrics.results import Results
from pipeline.study.expansion import FALLBACK
from pipeline.text import plural

_TITLE_LETTERS = 92
"""Of a title as wide as the figure."""


def grid(count: int, height: float, per_line: int = 4, **share: Any) -> tuple[Figure, list[Axes]]:
    """A figure with `count` panels, each `height` inches high, at most `per_line` side by side."""
    lines = -(-count // per_line)
    columns = -(-count // lines)
    figure, axes = plt.subplots(
        lines, columns, figsize=(WIDTH_INCHES, height * lines), squeeze=False,
        layout="constrained", **share,
    )  # fmt: skip
    for spare in axes.flat[count:]:
        spare.set_visible(False)
    for one in axes.flat[:count]:
        one.tick_params(labelbottom=True)
    return figure, list(axes.flat[:count])


def of_links(
    results: Results, height: float, **share: Any
) -> tuple[Figure, list[tuple[Axes, list[str]]]]:
    """A panel for each link that the study compares, with the cells that ran over it."""
    figure, axes_of = grid(len(results.links), height, **share)
    for axes, link in zip(axes_of, results.links, strict=True):
        name_panel(axes, f"links of {link}" if link not in ("", FALLBACK) else link)
    over = [results.over_link(link) for link in results.links]
    return figure, list(zip(axes_of, over, strict=True))


def of_places(
    results: Results, frame: pd.DataFrame, height: float, **share: Any
) -> tuple[Figure, list[tuple[Axes, pd.DataFrame]]]:
    """A titled panel for each number of nodes and link of which `frame` has rows, with these.

    Runs on one node, which use no link, are shown with the first link only.
    """
    # What ran on one node belongs to every link; once shown, it is not shown with the next one.
    places, shown, on_link = [], set[str](), results.cells.set_index("cell")["link"]
    for link in results.links:
        own = frame[frame["cell"].isin(set(results.over_link(link)) - shown)]
        for nodes in results.node_counts:
            rows = own[own["nodes"] == nodes]
            if not rows.empty:
                over = f", {link}" if link and (on_link[rows["cell"]] == link).any() else ""
                places.append((plural(nodes, "node") + over, rows))
        shown |= set(own["cell"])
    figure, axes = grid(len(places), height, **share)
    for one, (title, _) in zip(axes, places, strict=True):
        name_panel(one, title)
    return figure, [(one, rows) for one, (_, rows) in zip(axes, places, strict=True)]


def name_panel(axes: Axes, text: str) -> None:
    """Title of a panel, on several lines where it is too long for one."""
    place = axes.get_subplotspec()
    assert place is not None
    axes.set_title(textwrap.fill(text, _TITLE_LETTERS // place.get_gridspec().ncols))


def label(axes_of: Sequence[Axes], x: str, y: str = "") -> None:
    """Name the axes that all panels share: below the lowest and beside the leftmost ones."""
    place = axes_of[0].get_subplotspec()
    assert place is not None
    columns = place.get_gridspec().ncols
    for number, axes in enumerate(axes_of):
        axes.set_xlabel(x if number + columns >= len(axes_of) else "")
        axes.set_ylabel(y if number % columns == 0 else "")


def rows_axis(axes: Axes, names: Sequence[str]) -> None:
    """Vertical axis with a row for each name, the first on top; lines of the grid stand upright."""
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.tick_params(axis="y", left=False, labelsize=LEAST_POINTS)
    axes.grid(False, axis="y")
    axes.grid(True, axis="x")


def log_axis(axis: Axis, low: float, high: float, most: int = 7) -> None:
    """Logarithmic axis from `low` to `high`, both positive, with round ticks in plain digits."""
    name = "x" if isinstance(axis, XAxis) else "y"
    axis.axes.set(**{f"{name}scale": "log", f"{name}lim": (low, high)})
    powers = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
    # The most ticks that fit: of a short axis even steps, of a long one digits of each power of 10.
    choices = [
        [digit * 10.0**power for power in powers for digit in digits]
        for digits in ((1, 1.5, 2, 3, 4, 5, 6, 8), (1, 2, 5), (1, 3), (1,))
    ]
    if high < 3 * low:
        choices.insert(0, list(MaxNLocator(most - 1, steps=[1, 2, 5, 10]).tick_values(low, high)))
    inside = [[tick for tick in ticks if low <= tick <= high] for ticks in choices]
    ticks = next((ticks for ticks in inside if len(ticks) <= most), inside[-1])
    axis.set_major_locator(FixedLocator(ticks))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))


def extent(values: pd.DataFrame) -> tuple[float, float]:
    """The smallest and the largest number of points and of the intervals that some have."""
    numbers = values[["value", "low", "high"]].to_numpy(float)
    return float(np.nanmin(numbers)), float(np.nanmax(numbers))


def mark(axes: Axes, x: float, y: float, ends: tuple[float, float], look: Style) -> None:
    """A point with its horizontal interval, if `ends` are finite."""
    axes.plot(ends, [y, y], color=look.colour, lw=1.3, marker="|", ms=5.5, zorder=4)
    axes.plot([x], [y], color=look.colour, marker=look.marker, ms=5, zorder=5)
