"""Shared by throughput and speedup where no cell ran at several numbers of nodes: a ranking.

Then there is nothing to join by lines, and names at one place of an axis would pile up.
"""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from pipeline.figures import points, scales, sheets, theme
from pipeline.figures.against_nodes import words
from pipeline.metrics.select import links, over, over_link, plural, records

_ROW_INCHES = 0.17
_ROOM = 0.65


def fits(values: pd.DataFrame) -> bool:
    """Whether each of several arms has `values` at one number of nodes alone."""
    counts = values.groupby("arm")["nodes"].nunique()
    return len(counts) > 1 and int(counts.max()) == 1


def inches(values: pd.DataFrame) -> float:
    """Height of a panel with a row for each arm."""
    return 0.5 + _ROW_INCHES * int(values["arm"].nunique())


def draw(table: pd.DataFrame, values: pd.DataFrame, axis: str, what: str) -> Figure:
    """A panel for each link, the largest of `values` first; `axis` is the name of their axis."""
    compared = links(table)
    # Names stand beside every panel, so that three in a line leave no room for their titles.
    figure, [panels] = sheets.grid(len(compared), inches(values), per_line=2, sharex=True)
    top, columns = scales.extent(values)[1], panels[0].get_gridspec().ncols
    for place, (link, axes) in enumerate(zip(compared, panels, strict=True)):
        here = values[values["cell"].isin(over_link(table, link))]
        panel(axes, here, table, axis, top)
        axes.tick_params(labelbottom=True)
        if place + columns < len(compared):
            axes.set_xlabel("")
        scales.name_panel(axes, over(link), _ROOM)
    return theme.finish(figure, table, set(values["cell"]), what, named=True)


def panel(
    axes: Axes, values: pd.DataFrame, table: pd.DataFrame, axis: str, top: float | None = None
) -> None:
    """A row for each cell: its point with the interval, and the value at the end of the row.

    `top` is the largest number that the axis must hold, where panels share it.
    """
    look, rows = theme.styles(table), records(values.sort_values("value", ascending=False))
    most = int(values["nodes"].max())
    names = []
    top = top or (scales.extent(values)[1] if rows else 1.0)
    for place, row in enumerate(rows):
        style = look[row["cell"]]
        ends = [row["low"], row["high"]]
        axes.plot(ends, [place, place], color=style.colour, lw=1.3, marker="|", ms=5.5, zorder=4)
        axes.plot([row["value"]], [place], color=style.colour, marker=style.marker, ms=5, zorder=5)
        axes.add_artist(points.Point(row["value"], place, words(row)))
        digits = 0 if row["value"] >= 100 else 2
        axes.text(1.03 * top, place, f"{row['value']:,.{digits}f}", va="center", fontsize=7)
        nodes = int(row["nodes"])
        names.append(row["arm"] if nodes == most else f"{row['arm']}, {plural(nodes, 'node')}")
    # From zero, so that lengths compare; room for the numbers at the right.
    axes.set_xlim(0, 1.15 * top)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.grid(True, axis="x")
    axes.grid(True, axis="y")
    scales.cell_axis(axes, names)
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axes.set_xlabel(f"{axis} on {plural(most, 'node')}")
