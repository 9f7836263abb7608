"""Loss against time; `python -m pipeline figure loss_time`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

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
    """One panel for each node count and link, on one shared time axis."""
    loss = over_repeats(pick(table, "step", "loss"))
    if loss.empty:
        figure, [[axes]] = theme.grid(1, 2.9)
        return theme.empty(figure, axes, table)
    time = over_repeats(pick(table, "step", "elapsed_seconds"))
    keys = ["cell", "nodes", "step"]
    both = loss.merge(time[[*keys, "value"]].rename(columns={"value": "seconds"}), on=keys)
    figure, panels = _panels(table, both)
    on_link = cells(table).set_index("cell")["link"]
    for axes, count, link, here in panels:
        draw_lines(axes, here, table, x="seconds")
        panel_title(axes, count, link if (on_link[here["cell"]] == link).any() else "")
        axes.set_xlabel("Training time [s]")
    _label_outer([axes for axes, *_ in panels])
    return theme.finish(figure, table, set(both["cell"]), "Time of a step: its slowest rank.")


def _panels(
    table: pd.DataFrame, both: pd.DataFrame
) -> tuple[Figure, list[tuple[Axes, int, str, pd.DataFrame]]]:
    """The figure, and each panel with its node count, its link and what it shows.

    A row is of one link, where these are not more than the node counts. Runs on one node,
    which use no link, are shown with the first link only.
    """
    nodes, compared = node_counts(table), links(table)
    places, shown = [], set[str]()
    for link in compared:
        own = both[both["cell"].isin(set(over_link(table, link)) - shown)]
        places += [(count, link, own[own["nodes"] == count]) for count in nodes]
        shown |= set(own["cell"])
    share = {"sharex": True, "sharey": True}
    if len(compared) > len(nodes):
        places = [place for place in places if not place[-1].empty]
        figure, blocks = theme.grid(len(places), 2.5, **share)
    else:
        figure, blocks = theme.grid(len(nodes), 2.9, rows=len(compared), **share)
    filled = []
    for axes, place in zip(chain.from_iterable(blocks), places, strict=True):
        axes.set_visible(not place[-1].empty)
        filled += [] if place[-1].empty else [(axes, *place)]
    return figure, filled


def _label_outer(panels: Sequence[Axes]) -> None:
    """Label the leftmost panel of each row and the lowest of each column; some may be left out."""
    leftmost: dict[int, Axes] = {}
    lowest: dict[int, Axes] = {}
    for axes in panels:
        place = axes.get_subplotspec()
        assert place is not None
        leftmost.setdefault(place.rowspan.start, axes)
        lowest[place.colspan.start] = axes
    for axes in leftmost.values():
        axes.set_ylabel("Loss [nats/token]")
        axes.tick_params(labelleft=True)
    for axes in lowest.values():
        axes.tick_params(labelbottom=True)
        axes.xaxis.label.set_visible(True)
