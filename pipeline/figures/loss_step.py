"""Loss against step, and how far it is from one device; `python -m pipeline figure loss_step`."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from pipeline.figures import scales, theme
from pipeline.figures.loss_curves import draw_lines, over_repeats, panel_title
from pipeline.metrics.select import node_counts, pick

CAPTION = (
    "Training loss against the optimiser step (top) and its relative deviation from the "
    "single-device reference (bottom). Equal work must give equal curves, so lines on top of each "
    "other are the expected result. Lines are medians over the repeats, bands their range."
)
COMPARES = {"precision"}
_SMALLEST, _LARGEST = 1e-9, 1e2


def draw(table: pd.DataFrame) -> Figure:
    """Two rows of panels, one column for each node count."""
    nodes = node_counts(table)
    figure, [losses, deviations] = theme.grid(len(nodes), 2.1, rows=2, sharex=True, sharey="row")
    loss = over_repeats(pick(table, "step", "loss"))
    if loss.empty:
        return theme.empty(figure, losses[0], table)
    deviation = over_repeats(pick(table, "step", "loss_deviation"))
    deviation[["value", "low", "high"]] = deviation[["value", "low", "high"]].clip(
        _SMALLEST, _LARGEST
    )
    shown: set[str] = set()
    for count, top, bottom in zip(nodes, losses, deviations, strict=True):
        shown |= set(draw_lines(top, loss[loss["nodes"] == count], table))
        draw_lines(bottom, deviation[deviation["nodes"] == count], table)
        panel_title(top, count)
        bottom.set_yscale("log")
        scales.plain_powers(bottom.yaxis)
        bottom.xaxis.set_major_locator(MaxNLocator(nbins=4, integer=True))
        bottom.set_xlabel("Optimiser step")
    losses[0].set_ylabel("Loss [nats/token]")
    deviations[0].set_ylabel("Relative deviation")
    if not deviation.empty:
        deviations[0].set_ylim(_SMALLEST / 2, float(deviation["high"].max()) * 3)
    what = (
        f"Deviations below {_SMALLEST:g}, exact agreement among them, are drawn at {_SMALLEST:g}."
    )
    return theme.finish(figure, table, shown, what)
