"""Shared by the loss figures: one panel a node count, one line a cell, repeats as a band."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes

from pipeline.figures import marks, scales, theme
from pipeline.metrics.select import cells, plural


def over_repeats(steps: pd.DataFrame) -> pd.DataFrame:
    """Median, smallest and largest value over the repeats at each cell, node count and step."""
    grouped = steps.groupby(["cell_order", "cell", "nodes", "step"], sort=True)["value"]
    return grouped.agg(value="median", low="min", high="max").reset_index()


def draw_lines(
    axes: Axes, steps: pd.DataFrame, table: pd.DataFrame, x: str = "step"
) -> Sequence[str]:
    """Draw `value` against `x` for each cell of one panel; returns the cells drawn.

    Markers are staggered along the line, because equal work makes equal curves: where lines
    coincide, each cell still shows its own markers.
    """
    look = theme.styles(table)
    shown = [cell for cell in cells(table)["cell"] if cell in set(steps["cell"])]
    for place, cell in enumerate(shown):
        rows, style = steps[steps["cell"] == cell], look[cell]
        every = max(len(rows) // 6, 1)
        marks.line(
            axes, rows[x].to_numpy(dtype=float), rows["value"].to_numpy(),
            color=style.colour, linestyle=style.dashes, marker=style.marker, markersize=4.5,
            markeredgewidth=0.4, markevery=(place * every // max(len(shown), 1), every),
            linewidth=1.2, zorder=3,
        )  # fmt: skip
        axes.fill_between(
            rows[x].to_numpy(dtype=float), rows["low"], rows["high"], color=style.colour,
            alpha=0.15, lw=0, zorder=2,
        )  # fmt: skip
    axes.margins(x=0.03)
    return shown


def panel_title(axes: Axes, nodes: int, link: str = "") -> None:
    """Name the panel by its node count, and by what joins the nodes where that is compared."""
    scales.name_panel(axes, f"{plural(nodes, 'node')}, {link}" if link else plural(nodes, "node"))
