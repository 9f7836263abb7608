"""Loss against time; `python -m pipeline figure loss_time`."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from pipeline.figures import sheets, theme
from pipeline.figures.loss_curves import draw_lines, over_repeats
from pipeline.figures.panels import in_first_column, outer, panels
from pipeline.metrics.select import pick

CAPTION = (
    "Training loss against time. Time is the sum of all step times so far, the untimed first steps "
    "included, data loading and start-up left out; the panels of a row share its axis. Lines are "
    "medians over the repeats, bands the range of the loss."
)
COMPARES = {"precision"}


def draw(table: pd.DataFrame) -> Figure:
    """One panel for each node count and link; the panels of a row share a time axis."""
    loss = over_repeats(pick(table, "step", "loss"))
    if loss.empty:
        figure, [[axes]] = sheets.grid(1, 2.9)
        return theme.empty(figure, axes, table)
    time = over_repeats(pick(table, "step", "elapsed_seconds"))
    keys = ["cell", "nodes", "step"]
    both = loss.merge(time[[*keys, "value"]].rename(columns={"value": "seconds"}), on=keys)
    figure, found = panels(table, both, 1.6, sharex="row", sharey=True)
    for panel in found:
        draw_lines(panel.axes, panel.rows, table, x="seconds")
    leftmost, lowest = outer(found)
    for axes in leftmost:
        axes.tick_params(labelleft=True)
        if in_first_column(axes):
            axes.set_ylabel("Loss [nats/token]")
    for axes in lowest:
        axes.set_xlabel("Training time [s]")
    return theme.finish(figure, table, set(both["cell"]), "Time of a step: its slowest rank.")
