"""Peak memory of each rank; `python -m pipeline figure memory`."""

from __future__ import annotations

import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from pipeline.figures import panels, points, theme
from pipeline.metrics.select import pick, plural

CAPTION = (
    "Peak memory of each rank: resident set of the process on a CPU, memory allocated on the "
    "device on a GPU. One point a rank, the median over the repeats; rank 0, which is the root "
    "where a strategy has one, is filled."
)
COMPARES = {"precision"}
_MEBIBYTE = 2**20


def draw(table: pd.DataFrame) -> Figure:
    """A panel for each node count and link, one row of points for each cell."""
    peaks = pick(table, "rank", "peak_memory_bytes")
    if peaks.empty:
        return theme.nothing(table)
    keys = ["cell", "arm", "nodes", "rank"]
    peaks = peaks.groupby(keys, sort=False)["value"].median().reset_index()
    peaks["mebibytes"] = peaks["value"] / _MEBIBYTE
    arms, looks = panels.arms_of(table, peaks), theme.styles(table)
    figure, places = panels.of_places(table, peaks, 0.6 + 0.2 * len(arms), sharex=True, sharey=True)
    for panel in places:
        for cell, rows in panel.rows.groupby("cell", sort=False):
            arm = str(rows["arm"].iloc[0])
            rows = rows.sort_values("rank", ascending=False)
            look, row, largest = looks[str(cell)], arms.index(arm), rows["mebibytes"].max()
            # Ranks of one cell are spread a little, so that equal ones are all seen.
            y = row + (rows["rank"] - (len(rows) - 1) / 2) * 0.66 / max(len(rows), 4)
            fills = [look.colour if rank == 0 else "white" for rank in rows["rank"]]
            sns.scatterplot(
                x=rows["mebibytes"], y=y.astype(float), ax=panel.axes, marker=look.marker, s=24,
                facecolor=fills, edgecolor=look.colour, linewidth=1.1, zorder=3,
            )  # fmt: skip
            text = f"{arm}, {plural(panel.nodes, 'node')}: largest rank {largest:,.0f} MiB"
            if len(rows) > 1:
                text += f", smallest {rows['mebibytes'].min():,.0f} MiB"
            panel.axes.add_artist(points.Point(largest, row, text))
        panels.rows_axis(panel.axes, arms)
    places[0].axes.set_xlim(0, 1.08 * peaks["mebibytes"].max())
    panels.label([panel.axes for panel in places], "Peak memory [MiB]")
    kinds = [
        Line2D([], [], color="#444444", marker="o", ls="", mfc=fill, ms=5, label=label)
        for fill, label in (("#444444", "filled: rank 0"), ("white", "open: other ranks"))
    ]
    remark = "Ranks of one cell are spread vertically."
    return theme.finish(figure, table, set(peaks["cell"]), remark, named=True, extra=kinds)
