"""Loss against time; `python -m pipeline figure loss_time`."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from pipeline.figures import theme
from pipeline.figures.loss_curves import draw_lines, over_repeats, panel_title
from pipeline.metrics.select import links, node_counts, over_link, pick

CAPTION = (
    "Training loss against time. Time is the sum of all step times so far, the untimed first steps "
    "included, data loading and start-up left out. Lines are medians over the repeats, bands the "
    "range of the loss."
)
COMPARES = {"precision"}


def draw(table: pd.DataFrame) -> Figure:
    """One panel for each node count, a row of them for each link, on one shared time axis."""
    nodes, over = node_counts(table), links(table)
    figure, blocks = theme.grid(len(nodes), 2.9, rows=len(over), sharex=True, sharey=True)
    loss = over_repeats(pick(table, "step", "loss"))
    if loss.empty:
        return theme.empty(figure, blocks[0][0], table)
    time = over_repeats(pick(table, "step", "elapsed_seconds"))
    keys = ["cell", "nodes", "step"]
    both = loss.merge(time[[*keys, "value"]].rename(columns={"value": "seconds"}), on=keys)
    shown: set[str] = set()
    for link, panels in zip(over, blocks, strict=True):
        own = both[both["cell"].isin(over_link(table, link))]
        for count, axes in zip(nodes, panels, strict=True):
            shown |= set(draw_lines(axes, own[own["nodes"] == count], table, x="seconds"))
            panel_title(axes, count, link)
            axes.set_xlabel("Training time [s]")
        panels[0].set_ylabel("Loss [nats/token]")
    return theme.finish(figure, table, shown, "Time of a step: its slowest rank.")
