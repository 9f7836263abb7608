"""What each condition of a link costs each strategy; `python -m pipeline figure what_if`."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from pipeline.figures import points, scales, sheets, theme
from pipeline.figures.loss_curves import panel_title
from pipeline.metrics.contrasts import against_plain
from pipeline.metrics.format import significant, with_interval
from pipeline.metrics.select import cells, interval_notes, listed, plural, records

CAPTION = (
    "Step time under a condition over the step time of the same cell, on as many nodes, over the "
    "same link without it: ratio of medians with its interval; at the line nothing changes. "
    "'One node at' a speed is a straggler: the last node computes at this share of the speed of "
    "the others. 'Jitter' lengthens the computation of every node in every step by a share drawn "
    "from 0 to the number. 'Receives' is an asymmetric link: towards a node it has this rate "
    "instead. 'Uplink' is an oversubscribed network: half of the nodes at each of two switches, "
    "joined by one cable of this rate. The axis is logarithmic."
)
COMPARES = {"precision"}
NEEDS = "conditions"

_TICKS: tuple[Sequence[float], ...] = (
    [n / 20 for n in range(1, 60)],
    [n / 10 for n in range(1, 60)],
    [n / 4 for n in range(1, 8)] + [n / 2 for n in range(4, 12)],
    [0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 4, 6, 8],
    [2.0**power for power in range(-8, 12)],
    [10.0**power for power in range(-4, 5)],
)
"""Round ratios, from fine to coarse."""

_AXIS = "Step time over that without the condition"


def draw(table: pd.DataFrame) -> Figure:
    """A panel for each node count, a band for each condition, a point for each cell."""
    found = against_plain(table).dropna(subset=["ratio"])
    nodes = sorted({int(n) for n in found["nodes"]}) or [1]
    bands = list(dict.fromkeys(found["condition"]))
    arms = [arm for arm in cells(table)["arm"].unique() if arm in set(found["arm"])]
    height = 0.8 + max(len(bands), 1) * (0.2 + 0.14 * max(len(arms), 1))
    figure, [panels] = sheets.grid(len(nodes), height, sharex=True, sharey=True)
    if found.empty:
        return _nothing(figure, panels[0], table)
    for count, axes in zip(nodes, panels, strict=True):
        _panel(axes, found[found["nodes"] == count], bands, arms, table)
        panel_title(axes, count)
    _scale(panels, found)
    panels[0].set_yticks([])
    panels[0].set_ylim(len(bands) - 0.5, -0.5)
    for place, band in enumerate(bands):
        for axes in sheets.leftmost(panels):
            _name(axes, place, found[found["condition"] == band], found)
    return theme.finish(figure, table, set(found["cell"]), _remarks(found), lines=False)


def _panel(
    axes: Axes, found: pd.DataFrame, bands: list[str], arms: list[str], table: pd.DataFrame
) -> None:
    look, step = theme.styles(table), 0.7 / len(arms)
    for row in records(found):
        style = look[row["cell"]]
        above = arms.index(row["arm"]) - (len(arms) - 1) / 2
        y = bands.index(row["condition"]) + step * above
        ends = [row["low"], row["high"]]
        axes.plot(ends, [y, y], color=style.colour, lw=1.3, marker="|", ms=5.5, zorder=4)
        value = with_interval(row["ratio"], row["low"], row["high"])
        told = f"{row['arm_label']} under {row['condition']}, {plural(int(row['nodes']), 'node')}"
        axes.add_artist(points.Point(row["ratio"], y, f"{told}: {value} times as long"))
        axes.plot([row["ratio"]], [y], color=style.colour, marker=style.marker, ms=5, zorder=5)
    for place in range(1, len(bands)):
        axes.axhline(place - 0.5, color="#E2E2E2", lw=0.6, zorder=0)
    axes.axvline(1.0, color="#888888", lw=0.9, zorder=1)
    axes.grid(False, axis="y")
    axes.grid(True, axis="x")


def _scale(panels: Sequence[Axes], found: pd.DataFrame) -> None:
    """A logarithmic axis that holds all intervals and 1, with a few round ticks."""
    low, high = scales.extent(found.rename(columns={"ratio": "value"}))
    low, high = min(1.0, low) / 1.05, max(1.0, high) * 1.05
    most = 9 if len(panels) == 1 else 5
    fits = [[t for t in ticks if low <= t <= high] for ticks in _TICKS]
    ticks = next((inside for inside in fits if len(inside) <= most), [1.0])
    for axes in panels:
        axes.set_xscale("log")
        axes.set_xlim(low, high)
        axes.xaxis.set_major_locator(FixedLocator(ticks))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.set_xlabel(textwrap.fill(_AXIS, 66 // len(panels)))


def _name(axes: Axes, place: int, band: pd.DataFrame, found: pd.DataFrame) -> None:
    """The name of a condition and, below it in small, what it adds to the link.

    Where the conditions are of several links, that is all of the link's text.
    """
    name = band["condition"].iloc[0]
    text = band["adds" if found["plain_link"].nunique() == 1 else "link"].iloc[0]
    said = textwrap.fill(text, 26)
    lines = [(0.5, "bottom", 8.0, "#222222", name), (-1.5, "top", 7.0, "#555555", said)]
    if text.partition(" ")[0] == name:
        lines = [(0.0, "center", 8.0, "#222222", said)]
    for up, side, size, colour, line in lines:
        axes.annotate(
            line, (0, place), (-7, up), ("axes fraction", "data"), "offset points", ha="right",
            va=side, fontsize=size, color=colour,
        )  # fmt: skip


def _nothing(figure: Figure, axes: Axes, table: pd.DataFrame) -> Figure:
    text = "no cell finished both with and without a condition"
    axes.text(0.5, 0.5, text, ha="center", va="center", transform=axes.transAxes)
    return theme.finish(figure, table, (), "")


def _remarks(found: pd.DataFrame) -> str:
    """What the bars are, and the times that the ratios are taken over."""
    plain = found.drop_duplicates(["plain", "nodes"])
    several = found["nodes"].nunique() > 1
    times = [
        f"{row['plain']}{' on ' + str(row['nodes']) + ' nodes' if several else ''} "
        f"{significant(1000 * row['plain_seconds'])} ms"
        for row in records(plain)
    ]
    links = listed(dict.fromkeys(found["plain_link"]))
    return f"Without a condition, links of {links}: {listed(times)}. Bars: {interval_notes(found)}."
