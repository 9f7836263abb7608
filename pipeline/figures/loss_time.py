"""Loss against time; `python -m pipeline figure loss_time`."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from pipeline.figures import theme
from pipeline.figures.loss_curves import draw_lines, over_repeats, panel_title
from pipeline.metrics.select import node_counts, pick

CAPTION = (
    "Training loss against time. Time is the sum of all step times so far, the untimed first steps "
    "included, data loading and start-up left out. Lines are medians over the repeats, bands the "
    "range of the loss."
)
COMPARES = {"precision"}


def draw(table: pd.DataFrame) -> Figure:
    """One panel for each node count, on one shared time axis."""
    nodes = node_counts(table)
    figure, [panels] = theme.grid(len(nodes), 2.9, sharex=True, sharey=True)
    loss = over_repeats(pick(table, "step", "loss"))
    if loss.empty:
        return theme.empty(figure, panels[0], table)
    time = over_repeats(pick(table, "step", "elapsed_seconds"))
    keys = ["cell", "nodes", "step"]
    both = loss.merge(time[[*keys, "value"]].rename(columns={"value": "seconds"}), on=keys)
    shown: set[str] = set()
    for count, axes in zip(nodes, panels, strict=True):
        shown |= set(draw_lines(axes, both[both["nodes"] == count], table, x="seconds"))
        panel_title(axes, count)
        axes.set_xlabel("Training time [s]")
    panels[0].set_ylabel("Loss [nats/token]")
    return theme.finish(figure, table, shown, "Time of a step: its slowest rank.")
