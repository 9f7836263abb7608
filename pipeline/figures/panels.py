"""Shared by figures with a panel for each number of nodes and each link: which are there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pipeline.figures import scales, sheets
from pipeline.figures.loss_curves import panel_title
from pipeline.metrics.select import cells, links, node_counts, over_link


@dataclass(frozen=True)
class Panel:
    """One panel: where it is drawn, and the rows of the figure's frame that belong there."""

    axes: Axes
    nodes: int
    link: str
    rows: pd.DataFrame


def panels(
    table: pd.DataFrame, frame: pd.DataFrame, height: float, **share: Any
) -> tuple[Figure, list[Panel]]:
    """The figure and its titled panels, each `height` inches high; `frame` has `cell` and `nodes`.

    A row is of one link, where these are not more than the node counts. Runs on one node,
    which use no link, are shown with the first link only.
    """
    nodes, compared = node_counts(table), links(table)
    places, shown = [], set[str]()
    for link in compared:
        own = frame[frame["cell"].isin(set(over_link(table, link)) - shown)]
        places += [(count, link, own[own["nodes"] == count]) for count in nodes]
        shown |= set(own["cell"])
    if len(compared) > len(nodes):
        places = [place for place in places if not place[-1].empty]
        figure, blocks = sheets.grid(len(places), height, **share)
    else:
        figure, blocks = sheets.grid(len(nodes), height, rows=len(compared), **share)
    on_link, found = cells(table).set_index("cell")["link"], []
    for axes, (count, link, rows) in zip(chain.from_iterable(blocks), places, strict=True):
        axes.set_visible(not rows.empty)
        if not rows.empty:
            panel_title(axes, count, link if (on_link[rows["cell"]] == link).any() else "")
            found.append(Panel(axes, count, link, rows))
    return figure, found


def outer(found: Sequence[Panel]) -> tuple[list[Axes], list[Axes]]:
    """The leftmost panel of each row, and the lowest of each column; some may be left out."""
    leftmost: dict[int, Axes] = {}
    lowest: dict[int, Axes] = {}
    for panel in found:
        place = panel.axes.get_subplotspec()
        assert place is not None
        leftmost.setdefault(place.rowspan.start, panel.axes)
        lowest[place.colspan.start] = panel.axes
    return list(leftmost.values()), list(lowest.values())


def name_cells(found: Sequence[Panel], arms: Sequence[str]) -> None:
    """Short names of the cells beside the leftmost panel of each row; all panels share the axis.

    Beside a row that begins with an empty place they stand in that, and take no room of the panels.
    """
    scales.cell_axis(found[0].axes, arms)
    leftmost = [axes for axes in outer(found)[0] if not in_first_column(axes)]
    for panel in found[1:]:
        for arm in dict.fromkeys(panel.rows["arm"]) if panel.axes in leftmost else ():
            panel.axes.text(
                -0.05, arms.index(arm), arm, ha="right", va="center", fontsize=7.5, in_layout=False,
                transform=panel.axes.get_yaxis_transform(),
            )  # fmt: skip


def in_first_column(axes: Axes) -> bool:
    """Whether the name of a y axis that all panels share stands beside this one."""
    place = axes.get_subplotspec()
    assert place is not None
    return place.is_first_col()


def in_last_row(axes: Axes) -> bool:
    """Whether the name of an x axis that all panels share stands below this one."""
    place = axes.get_subplotspec()
    assert place is not None
    return place.is_last_row()


def arms_of(table: pd.DataFrame, frame: pd.DataFrame) -> list[str]:
    """Short names of the arms that `frame` has, in the order of the study: lines of a panel."""
    names = cells(table)
    return list(dict.fromkeys(names.loc[names["cell"].isin(frame["cell"]), "arm"]))
