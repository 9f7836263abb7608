"""Shared by throughput and speedup: a value with its interval against the number of nodes."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping
from typing import Any

import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, NullLocator

from pipeline.figures import panels, theme
from pipeline.metrics.results import Results, interval_notes, records
from pipeline.text import plural, significant

_IDEAL: dict[str, Any] = {"color": theme.GREY, "lw": 1.0, "ls": (0, (6, 3)), "zorder": 1}


def draw(
    results: Results,
    values: pd.DataFrame,
    label: str,
    remark: str = "",
    scale: Mapping[str, float] | None = None,
) -> Figure:
    """A panel for each link with a line for each arm, beside ideal scaling from each base.

    `label` names `values`; ideal scaling is proportional to the number of ranks, and `scale`
    multiplies it by the absolute figure of a base. Where over two thirds of the cells ran at one
    number of nodes, points without lines would stand in a heap: there is a ranking instead.
    """
    if values.empty:
        return theme.nothing(results)
    remark = f"{remark}Bars: {interval_notes(values)}."
    counts = values.groupby("arm")["nodes"].nunique()
    if len(counts) > 1 and (counts == 1).mean() > 2 / 3:
        return _ranking(results, values, label, remark)
    figure, over_links = panels.of_links(results, 2.4, sharey=True)
    ideals = results.pick("cell", "ideal_speedup")
    for axes, own in over_links:
        axes.set_xscale("log", base=2)
        _lines(axes, values[values["cell"].isin(own)], results)
        for base, rows in ideals[ideals["cell"].isin(own)].groupby("base", sort=False):
            nodes = rows["nodes"].astype(float)
            slope = (rows["value"] / nodes).max() * (scale[str(base)] if scale else 1.0)
            ends = [nodes.min(), nodes.max()]
            axes.plot(ends, [slope * end for end in ends], **_IDEAL)
        axes.xaxis.set_major_locator(FixedLocator(results.node_counts))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter("{x:g}")
    # The ideal may lie far above everything measured; the measurements set the scale.
    low, high = panels.extent(values)
    panels.log_axis(over_links[0][0].yaxis, low / 1.2, high * 1.2)
    panels.label([axes for axes, _ in over_links], "Nodes", label)
    extra = [Line2D([], [], label="ideal scaling from each base", **_IDEAL)]
    remark += " Points are offset sideways for legibility."
    return theme.finish(figure, results, values, remark, extra=extra)


def _lines(axes: Axes, values: pd.DataFrame, results: Results) -> None:
    """Lines and intervals, moved sideways a little so that no point hides another.

    `values` are over one link: over each the line of an arm begins with the point of its one node.
    """
    looks, arms = theme.semantics(results), results.arms(values)
    # A factor, since the axis is logarithmic: all arms together stay within a sixth of its length,
    # and within a third of an octave.
    octaves = min(2.0, math.log2(values["nodes"].max() / values["nodes"].min()) or 2.0)
    step = octaves / 2 * min(0.05, 0.36 / max(len(arms), 1))
    aside = 2 ** (step * (values["arm"].map(arms.index) - (len(arms) - 1) / 2))
    values = values.assign(x=values["nodes"].astype(float) * aside)
    sns.lineplot(
        values, x="x", y="value", ax=axes, legend=False, errorbar=None,
        markersize=7, markeredgewidth=0.5, linewidth=1.4, zorder=5, **looks,
    )  # fmt: skip
    for arm, rows in values.groupby("arm", sort=False):
        spread = [rows["value"] - rows["low"], rows["high"] - rows["value"]]
        axes.errorbar(rows["x"], rows["value"], spread, fmt="none", ecolor=looks["palette"][arm],
                      elinewidth=1.3, capsize=3, zorder=4)  # fmt: skip


def _ranking(results: Results, values: pd.DataFrame, label: str, remark: str) -> Figure:
    """A panel for each link with a row for each cell and number of nodes, the largest first."""
    arms = results.arms(values)
    names, height = theme.names(results, arms)
    name_of = dict(zip(arms, names, strict=True))
    rows_of = [int(values["cell"].isin(results.over_link(link)).sum()) for link in results.links]
    height = 0.5 + max(rows_of) * height / len(arms)
    figure, over_links = panels.of_links(results, height, per_line=2)
    looks, top = theme.semantics(results), panels.extent(values)[1]
    most, columns = int(values["nodes"].max()), min(len(over_links), 2)
    for axes, cells in over_links:
        own = values[values["cell"].isin(cells)].sort_values("value", ascending=False)
        names = []
        for place, row in enumerate(records(own)):
            panels.mark(axes, row, "value", place, looks)
            axes.text(1.08 * top, place, significant(row["value"]), va="center", zorder=6,
                      fontsize=theme.LEAST_POINTS,
                      bbox={"fc": "white", "ec": "none", "pad": 1})  # fmt: skip
            nodes = int(row["nodes"])
            names.append(
                name_of[row["arm"]] + (f", {plural(nodes, 'node')}" if nodes != most else "")
            )
        panels.rows_axis(axes, names)
        # From zero, so that lengths compare; room for the numbers at the right.
        axes.set_xlim(0, 1.2 * top)
        axes.locator_params(axis="x", nbins=4 // columns)
        axes.xaxis.set_major_formatter("{x:,.10g}")
    # Names take half of a panel's room; nodes keep their number.
    on = f"on {plural(most, 'node')}".replace(" ", "\N{NO-BREAK SPACE}")
    title = textwrap.fill(f"{label} {on}", 52 // columns)
    panels.label([axes for axes, _ in over_links], title)
    return theme.finish(figure, results, values, remark, named=True)
