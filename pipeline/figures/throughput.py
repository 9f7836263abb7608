"""Throughput against nodes; `python -m pipeline figure throughput`."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from pipeline.figures import theme
from pipeline.figures.against_nodes import draw_cells, ideal_lines
from pipeline.figures.overlay import legend_label, published_step_seconds
from pipeline.metrics.select import interval_notes, pick, records

CAPTION = (
    "Training throughput against the number of nodes. Each point is the tokens of one step divided "
    "by the median step time, with its interval; the line below says how that was made and what it "
    "covers. Grey lines show ideal scaling from each base. Points are moved sideways a little so "
    "that none hides another."
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
    published = _published(axes, values, table, shown)
    top = max([float(values["high"].max()), *published])
    ideal = ideal_lines(axes, pick(table, "cell", "ideal_speedup"), scale)
    # The ideal may lie far above everything measured; the measurements set the scale.
    axes.set_ylim(0, top * 1.18)
    axes.set_ylabel("Throughput [tokens/s]")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    what = f"Bars: {interval_notes(values)}."
    entries = [theme.provenance_entry(theme.PUBLISHED, label) for label in published.values()]
    return theme.finish(figure, table, shown, what, extra=[*ideal, *entries[:1]])


def _published(
    axes: Axes, values: pd.DataFrame, table: pd.DataFrame, shown: list[str]
) -> dict[float, str]:
    """Draw the published rates of the same settings; rate -> what the legend says of them."""
    numbers, drawn = published_step_seconds(table), {}
    for row in records(values):
        number = numbers.get((row["cell"], int(row["nodes"])))
        if number is not None:
            rate = float(row["global_batch_tokens"]) / number.value
            colour = theme.styles(table)[row["cell"]].colour
            x = theme.dodge([int(row["nodes"])], shown.index(row["cell"]), len(shown))
            axes.plot(x, [rate], **theme.provenance(theme.PUBLISHED, colour))
            drawn[rate] = legend_label(numbers)
    return drawn
