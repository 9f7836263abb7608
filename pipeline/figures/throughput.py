"""Throughput against nodes; `python -m pipeline figure throughput`."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from pipeline.figures import theme
from pipeline.figures.against_nodes import draw_cells, ideal_lines
from pipeline.metrics.select import pick

CAPTION = (
    "Training throughput against the number of nodes. Each point is the tokens of one step divided "
    "by the median step time, with its 95 % interval; grey lines show ideal scaling from each "
    "base. Points are moved sideways a little so that none hides another."
)
COMPARES = {"precision"}


def draw(table: pd.DataFrame) -> Figure:
    """Tokens per second of every cell at every node count."""
    figure, [[axes]] = theme.grid(1, 3.2)
    values = pick(table, "cell", "tokens_per_second")
    if values.empty:
        return theme.empty(figure, axes, table)
    shown = draw_cells(axes, values, table)
    bases = pick(table, "cell", "base_tokens_per_second")
    scale = dict(zip(bases["base"], bases["value"], strict=True))
    top = float(values["high"].max())
    ideal = ideal_lines(axes, pick(table, "cell", "ideal_speedup"), scale)
    # The ideal may lie far above everything measured; the measurements set the scale.
    axes.set_ylim(0, top * 1.18)
    axes.set_ylabel("Throughput [tokens/s]")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    what = "Bars: 95 % two-level bootstrap (repeats, then steps)."
    return theme.finish(figure, table, shown, what, extra=ideal)
