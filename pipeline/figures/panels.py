"""The panels of a figure: one for each number of nodes and link, their axes and their points."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.axis import Axis, XAxis
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from pipeline.figures.theme import LEAST_POINTS, WIDTH_INCHES
from pipeline.metrics.results import Results
from pipeline.study.expansion import FALLBACK
from pipeline.text import plural


def grid(
    count: int, height: float, per_line: int = 4, titles: Sequence[str] = (), **share: Any
) -> tuple[Figure, list[Axes]]:
    """A figure with `count` panels, each `height` inches high, at most `per_line` side by side."""
    lines = -(-count // per_line)
    columns = -(-count // lines)
    figure, axes = plt.subplots(
        lines, columns, figsize=(WIDTH_INCHES, height * lines), squeeze=False,
        layout="constrained", **share,
    )  # fmt: skip
    for spare in axes.flat[count:]:
        spare.set_visible(False)
    shown = list(axes.flat[:count])
    for one, title in zip(shown, titles or [""] * count, strict=True):
        one.tick_params(labelbottom=True)
        # A title as wide as the figure has 92 letters.
        one.set_title(textwrap.fill(title, 92 // columns))
    return figure, shown


def of_links(
    results: Results, height: float, **share: Any
) -> tuple[Figure, list[tuple[Axes, list[str]]]]:
    """A panel for each link that the study compares, with the cells that ran over it."""
    links = results.links
    titles = [f"links of {link}" if link not in ("", FALLBACK) else link for link in links]
    figure, axes_of = grid(len(links), height, titles=titles, **share)
    return figure, list(zip(axes_of, map(results.over_link, links), strict=True))


def of_places(
    results: Results, frame: pd.DataFrame, height: float
) -> tuple[Figure, list[tuple[Axes, pd.DataFrame]]]:
    """A titled panel for each number of nodes and link of which `frame` has rows, with these.

    Runs on one node, which use no link and so belong to every one, stand with the first link only.
    """
    titles, parts, shown = list[str](), list[pd.DataFrame](), set[str]()
    on_link = results.cells.set_index("cell")["link"]
    for link in results.links:
        own = frame[frame["cell"].isin(set(results.over_link(link)) - shown)]
        shown |= set(own["cell"])
        for _, rows in own.groupby("nodes"):
            over = f", {link}" if link and (on_link[rows["cell"]] == link).any() else ""
            titles.append(plural(int(rows["nodes"].iloc[0]), "node") + over)
            parts.append(rows)
    figure, axes_of = grid(len(parts), height, titles=titles, sharex=True, sharey=True)
    return figure, list(zip(axes_of, parts, strict=True))


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


def mark(axes: Axes, row: Mapping[str, Any], value: str, y: float, looks: dict[str, Any]) -> None:
    """The point `value` of a row with its horizontal interval, where it has one."""
    colour, marker = looks["palette"][row["arm"]], looks["markers"][row["arm"]]
    axes.plot([row["low"], row["high"]], [y, y], color=colour, lw=1.3, marker="|", ms=5.5, zorder=4)
    axes.plot([row[value]], [y], color=colour, marker=marker, ms=5, zorder=5)
