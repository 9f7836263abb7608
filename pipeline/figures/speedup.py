"""Speedup against nodes; `python -m pipeline figure speedup`."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from pipeline.figures import theme
from pipeline.figures.against_nodes import draw_cells, ideal_lines
from pipeline.metrics.select import interval_notes, listed, pick, records

CAPTION = (
    "Speedup against the number of nodes: throughput over that of the base, with the interval of "
    "the ratio. The base is the single-device run of the same precision, or the cell's own run "
    "on one node where there is none; the line below the figure gives it in absolute terms and "
    "says what the intervals cover. The dashed grey line is ideal speedup. Both axes are "
    "logarithmic, so equal distances are equal factors."
)
COMPARES = {"precision"}
_TICKS = [factor * 2.0**power for power in range(-8, 12) for factor in (1.0, 1.5)]


def draw(table: pd.DataFrame) -> Figure:
    """Speedup of every cell at every node count, with the ideal line."""
    figure, [[axes]] = theme.grid(1, 3.2)
    values = pick(table, "cell", "speedup")
    if values.empty:
        return theme.empty(figure, axes, table)
    shown = draw_cells(axes, values, table)
    ideal = ideal_lines(axes, pick(table, "cell", "ideal_speedup"))
    axes.axhline(1.0, color="#BBBBBB", lw=0.8, zorder=1)
    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_locator(FixedLocator(_TICKS))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_ylabel("Speedup over the base")
    bases = pick(table, "cell", "base_tokens_per_second").drop_duplicates("base")
    names = listed(f"{b['base']} ({b['value']:,.0f} tokens/s)" for b in records(bases))
    what = f"Bases: {names}. Bars: {interval_notes(values)}."
    return theme.finish(figure, table, shown, what, extra=ideal)
