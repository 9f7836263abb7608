"""Loss against time; `python -m pipeline figure loss_time`."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pipeline.figures import theme
from pipeline.figures.loss_curves import draw_lines, over_repeats, panel_title
from pipeline.metrics.select import cells, links, node_counts, over_link, pick

CAPTION = (
    "Training loss against time. Time is the sum of all step times so far, the untimed first steps "
    "included, data loading and start-up left out. Lines are medians over the repeats, bands the "
    "range of the loss."
)
COMPARES = {"precision"}


def draw(table: pd.DataFrame) -> Figure:
    """One panel for each node count, a row of them for each link, on one shared time axis.

    What ran over no link, one node, stands in the first row alone.
    """
    nodes, compared = node_counts(table), links(table)
    figure, blocks = theme.grid(len(nodes), 2.9, rows=len(compared), sharex=True, sharey=True)
    loss = over_repeats(pick(table, "step", "loss"))
    if loss.empty:
        return theme.empty(figure, blocks[0][0], table)
    time = over_repeats(pick(table, "step", "elapsed_seconds"))
    keys = ["cell", "nodes", "step"]
    both = loss.merge(time[[*keys, "value"]].rename(columns={"value": "seconds"}), on=keys)
    shown: set[str] = set()
    on_link = cells(table).set_index("cell")["link"]
    lowest: dict[int, Axes] = {}
    for link, panels in zip(compared, blocks, strict=True):
        own = both[both["cell"].isin(over_link(table, link))]
        filled = []
        for count, axes in zip(nodes, panels, strict=True):
            here = own[own["nodes"] == count]
            if shown and shown.issuperset(here["cell"]):
                axes.set_visible(False)
                continue
            filled.append(axes)
            lowest[count] = axes
            draw_lines(axes, here, table, x="seconds")
            panel_title(axes, count, link if (on_link[here["cell"]] == link).any() else "")
            axes.set_xlabel("Training time [s]")
        shown |= set(own["cell"])
        filled[0].set_ylabel("Loss [nats/token]")
        filled[0].tick_params(labelleft=True)
    for axes in lowest.values():
        # Where the panel below is left out, this one has the axis that they share.
        axes.tick_params(labelbottom=True)
        axes.xaxis.label.set_visible(True)
    return theme.finish(figure, table, shown, "Time of a step: its slowest rank.")
