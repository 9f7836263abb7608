"""Peak memory of each rank; `python -m pipeline figure memory`."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from pipeline.figures import marks, points, sheets, theme
from pipeline.figures.panels import arms_of, in_last_row, name_cells, outer, panels
from pipeline.metrics.select import pick, plural

CAPTION = (
    "Peak memory of each rank: resident set of the process on a CPU, memory allocated on the "
    "device on a GPU. One point a rank, the median over the repeats; rank 0, which is the root "
    "where a strategy has one, is filled."
)
COMPARES = {"precision"}
_MEBIBYTE = 2**20


def draw(table: pd.DataFrame) -> Figure:
    """A panel for each node count and link, one line of points for each cell."""
    peaks = pick(table, "rank", "peak_memory_bytes")
    if peaks.empty:
        figure, [[axes]] = sheets.grid(1, 2.0)
        return theme.empty(figure, axes, table)
    keys = ["cell", "arm", "nodes", "rank"]
    over = peaks.groupby(keys, sort=True)["value"].median().reset_index()
    arms = arms_of(table, peaks)
    figure, found = panels(table, over, 0.5 + 0.2 * len(arms), sharex=True, sharey=True)
    for panel in found:
        _panel(panel.axes, panel.rows, arms, table)
    name_cells(found, arms)
    for axes in outer(found)[1]:
        axes.tick_params(labelbottom=True)
        if in_last_row(axes):
            axes.set_xlabel("Peak memory [MiB]")
    kinds = [
        Line2D([], [], color="#444444", marker="o", ls="", mfc=fill, ms=5, label=label)
        for fill, label in (("#444444", "filled: rank 0"), ("white", "open: other ranks"))
    ]
    # Set once for all panels, after all are drawn: they share the axis.
    found[0].axes.set_xlim(0, float(over["value"].max()) / _MEBIBYTE * 1.08)
    what = "Ranks of one cell are spread vertically."
    return theme.finish(figure, table, set(peaks["cell"]), what, named=True, extra=kinds)


def _panel(axes: Axes, peaks: pd.DataFrame, order: list[str], table: pd.DataFrame) -> None:
    look = theme.styles(table)
    for place, arm in enumerate(order):
        own = peaks[peaks["arm"] == arm]
        if own.empty:
            continue
        style = look[own["cell"].iloc[0]]
        x = own["value"].to_numpy() / _MEBIBYTE
        spread = 0.66 / max(len(own), 4)
        y = [place + (i - (len(own) - 1) / 2) * spread for i in range(len(own))]
        axes.plot([x.min(), x.max()], [place, place], color=style.colour, lw=3, alpha=0.18)
        told = (
            f"{arm}, {plural(int(own['nodes'].iloc[0]), 'node')}: largest rank {x.max():,.0f} MiB"
        )
        told += f", smallest {x.min():,.0f} MiB" if len(own) > 1 else ""
        axes.add_artist(points.Point(float(x.max()), place, told))
        for first in (False, True):
            chosen = own["rank"].to_numpy() == 0
            keep = chosen if first else ~chosen
            marks.dots(
                axes, x[keep], [v for v, k in zip(y, keep, strict=True) if k],
                marker=style.marker, s=24, facecolor=style.colour if first else "white",
                edgecolor=style.colour, linewidth=1.1, zorder=3,
            )  # fmt: skip
    axes.set_ylim(len(order) - 0.5, -0.5)
    axes.grid(False, axis="y")
    axes.grid(True, axis="x")
