"""Shared by throughput and speedup: a value with its interval against the number of nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from pipeline.figures import marks, points, scales, theme
from pipeline.metrics.format import with_interval
from pipeline.metrics.select import cells, interval_notes, node_counts, plural, records

_GREY = "#8A8A8A"
_LINE_POINTS = 11.0
"""From one short name to the next; panels become a little lower when titles are laid out."""
_ABOVE_POINTS = 9.0


def draw_arms(axes: Axes, values: pd.DataFrame, table: pd.DataFrame) -> list[str]:
    """Draw each arm's line and intervals, dodged on the log axis; returns the arms drawn.

    `values` are over one link, where an arm has one cell, and one for its one node at most: over
    every link the line begins with the same point.
    """
    look, shown = theme.styles(table), _arms(values, table)
    for place, arm in enumerate(shown):
        rows = values[values["arm"] == arm].sort_values("nodes")
        style = look[rows["cell"].iloc[0]]
        x = theme.dodge([int(n) for n in rows["nodes"]], place, len(shown))
        y = rows["value"].to_numpy()
        spread = [y - rows["low"].to_numpy(), rows["high"].to_numpy() - y]
        marks.line(
            axes, x, y, color=style.colour, marker=style.marker, markersize=7,
            markeredgewidth=0.5, linewidth=1.4, linestyle=style.dashes, zorder=5,
        )  # fmt: skip
        axes.errorbar(
            x, y, yerr=spread, fmt="none", ecolor=style.colour, elinewidth=1.3, capsize=3, zorder=4
        )
        for place_x, row in zip(x, records(rows), strict=True):
            axes.add_artist(points.Point(place_x, float(row["value"]), words(row)))
    scales.node_axis(axes, node_counts(table))
    return shown


def _arms(values: pd.DataFrame, table: pd.DataFrame) -> list[str]:
    """The arms that are drawn; their order is that in which they are moved sideways."""
    return [arm for arm in cells(table)["arm"].unique() if arm in set(values["arm"])]


def words(row: Mapping[str, Any]) -> str:
    """Cell, nodes, value with its interval and the number of runs, as a title over the point."""
    unit = "" if row["unit"] == "1" else f" {row['unit']}"
    value = with_interval(row["value"], row["low"], row["high"])
    place = f"{row['label']}, {plural(int(row['nodes']), 'node')}"
    return f"{place}: {value}{unit}, {plural(int(row['n']), 'run')}"


def name_ends(axes: Axes, values: pd.DataFrame, table: pd.DataFrame) -> None:
    """Write each arm's short name at the end of its line; call it when the y axis is settled.

    Names beside the last number of nodes stand outside of the panel, moved apart where lines end
    close together, each by as little as can be and then joined to its end by a thin line.
    """
    look, last = theme.styles(table), int(values["nodes"].max())
    ends = records(values.sort_values("nodes").drop_duplicates("arm", keep="last"))
    to_axes = axes.transScale + axes.transLimits
    beside = []
    before = []
    for row in ends:
        if int(row["nodes"]) == last:
            height = float(to_axes.transform((float(last), float(row["value"])))[1])
            beside.append((height, row))
        else:
            before.append(row)
    _name_above(axes, before, values, table)
    beside.sort(key=lambda one: one[0])
    height_points = axes.bbox.height / axes.figure.dpi * 72
    heights = _apart([height for height, _ in beside], _LINE_POINTS / height_points)
    for (end, row), height in zip(beside, heights, strict=True):
        colour = theme.ink(look[row["cell"]].colour)
        if abs(height - end) > _LINE_POINTS / height_points / 4:
            axes.plot(
                [0.945, 1.01], [end, height], transform=axes.transAxes, color=colour, lw=0.5,
                clip_on=False, zorder=2,
            )  # fmt: skip
        axes.text(
            1.02, height, row["arm"], transform=axes.transAxes, fontsize=7, va="center",
            color=colour,
        )  # fmt: skip


def _name_above(
    axes: Axes, ends: Sequence[Mapping[str, Any]], values: pd.DataFrame, table: pd.DataFrame
) -> None:
    """Name lines that end before the last number of nodes above all points there, one over another.

    A thin line leads from a name to its point where another point is between them.
    """
    look, shown = theme.styles(table), _arms(values, table)
    for place, row in enumerate(ends):
        colour, nodes = theme.ink(look[row["cell"]].colour), int(row["nodes"])
        [x] = theme.dodge([nodes], shown.index(row["arm"]), len(shown))
        there = values[values["nodes"] == nodes]
        above = scales.extent(there)[1]
        lower = sum(int(other["nodes"]) == nodes for other in ends[:place])
        axes.annotate(
            row["arm"], (x, above), (0, 5 + _ABOVE_POINTS * lower), ha="center",
            textcoords="offset points", fontsize=7, color=colour,
        )  # fmt: skip
        if (top := scales.extent(pd.DataFrame([row]))[1]) < above:
            axes.vlines(x, top, above, color=colour, lw=0.5, zorder=2)


def _apart(heights: list[float], gap: float) -> list[float]:
    """Ascending heights, from 0 to 1 where they fit, each at least `gap` above the one before.

    They are those nearest to the given ones by least squares: isotonic regression of what is left
    of each height without the gaps below it, by pooling neighbours that are in the wrong order.
    """
    pools: list[tuple[float, int]] = []
    for place, height in enumerate(heights):
        mean, number = height - place * gap, 1
        while pools and pools[-1][0] > mean:
            below, many = pools.pop()
            mean, number = (mean * number + below * many) / (number + many), number + many
        pools.append((mean, number))
    most = max(1.0 - (len(heights) - 1) * gap, 0.0)
    flat = [min(max(mean, 0.0), most) for mean, number in pools for _ in range(number)]
    return [height + place * gap for place, height in enumerate(flat)]


def bars(values: pd.DataFrame) -> str:
    """How the intervals of these points were made, and why some are not seen."""
    made = interval_notes(values)
    hidden = "" if values["low"].isna().all() else "; the marker hides a shorter one"
    return f"Bars: {made}{hidden}."


def ideal_lines(
    axes: Axes, ideal: pd.DataFrame, scale: Mapping[str, float] | None = None
) -> Sequence[Line2D]:
    """Grey curves of ideal scaling, one for each distinct one among the cells; for the legend.

    `scale` multiplies a base's curve by its absolute figure (tokens/s); without it the curve is
    the speedup itself. Ideal means proportional to the number of ranks.
    """
    drawn = set()
    for base, rows in ideal.groupby("base", sort=False):
        last = records(rows.sort_values("nodes"))[-1]
        ranks_per_node = float(last["value"]) / float(last["nodes"])
        slope = ranks_per_node * (1.0 if scale is None else scale[str(base)])
        nodes = np.geomspace(float(rows["nodes"].min()), float(last["nodes"]), 60)
        if len(nodes) and round(slope, 6) not in drawn:
            axes.plot(nodes, slope * nodes, color=_GREY, lw=1.0, ls=(0, (6, 3)), zorder=1)
            drawn.add(round(slope, 6))
    label = "ideal scaling from each base" if len(drawn) > 1 else "ideal scaling"
    return [Line2D([], [], color=_GREY, lw=1.0, ls=(0, (6, 3)), label=label)] if drawn else []
