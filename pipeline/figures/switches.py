"""Worth of each change of a cell, alone and beside others."""

from __future__ import annotations

import textwrap

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from pipeline.figures import panels, theme
from pipeline.metrics.contrasts import FASTER, SLOWER
from pipeline.metrics.results import Results, records
from pipeline.text import plural

CAPTION = (
    "What each change adds: throughput with it over throughput without it, of two cells that "
    "differ in nothing else, with the interval of the ratio: alone, beside some others, or as the "
    "last, where all others are made. A full mark: faster or slower by the test, and by more than "
    "emulated times may be off (grey band)."
)
COMPARES = {"precision", "global_batch", "updates_per_step", "schedule"}
NEEDS = "switches"
_TURNS = ("alone", "beside some others", "as the last")
# No colour of a cell.
_COLOURS = ("#222222", "#8A8A8A", theme.ACCENT)


def draw(results: Results) -> Figure:
    """A panel for each link and number of nodes, a band for each change, a point for each pair."""
    pairs = []
    for row in records(results.pick("cell", "switch")):
        nodes = int(row["nodes"])
        test = results.compared((row["cell"], nodes), (str(row["other"]), nodes))
        if test is not None and test.ratio > 0:
            # The value is the number of other changes that are made, n that of all others.
            turn = 0 if row["value"] == 0 else 2 if row["value"] == row["n"] else 1
            pairs.append(row | vars(test) | {"turn": turn})
    if not pairs:
        return theme.nothing(results, "no two cells that differ in one thing alone both finished")
    frame = pd.DataFrame(pairs).astype({"link": "object"}).fillna({"link": ""})
    changes = list(dict.fromkeys(frame["text"]))
    places = [*frame.groupby(["link", "nodes"], sort=False)]
    titles = [plural(nodes, "node") + (link and f", {link}") for (link, nodes), _ in places]
    height = 0.7 + 0.62 * len(changes)
    figure, axes_of = panels.grid(len(places), height, 2, titles, sharex=True, sharey=True)
    low, high = panels.extent(frame.assign(value=frame["ratio"]))
    for axes, (_, rows) in zip(axes_of, places, strict=True):
        for change, own in rows.groupby("text", sort=False):
            for place, row in enumerate(records(own.sort_values("value", kind="stable"))):
                y = changes.index(str(change)) + 0.7 * ((place + 0.5) / len(own) - 0.5)
                colour = _COLOURS[row["turn"]]
                face = colour if row["verdict"] in (FASTER, SLOWER) else "white"
                axes.plot([row["low"], row["high"]], [y, y], color=colour, lw=1.3, zorder=4)
                axes.plot([row["ratio"]], [y], color=colour, marker="o", ms=5, mfc=face, zorder=5)
        axes.axvline(1.0, color=theme.GREY, lw=0.9, zorder=1)
        if results.bias:
            axes.axvspan(1 / (1 + results.bias), 1 + results.bias, color="#EEEEEE", zorder=0)
        panels.rows_axis(axes, [textwrap.fill(change, 30) for change in changes])
        panels.log_axis(axes.xaxis, min(1.0, low) / 1.05, max(1.0, high) * 1.05, 6)
    panels.label(axes_of, "Throughput with it over without it")
    entries = [
        Line2D([], [], color=_COLOURS[turn], marker="o", ms=5, lw=1.3, label=_TURNS[turn])
        for turn in sorted(set(frame["turn"]))
    ]
    remark = "Bars: 95 % intervals of ratios of medians."
    both = pd.DataFrame({"cell": [*frame["cell"], *frame["other"]]})
    return theme.finish(figure, results, both, remark, named=True, extra=entries)
