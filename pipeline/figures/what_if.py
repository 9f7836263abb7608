"""Cost of each condition of a link to each strategy."""

from __future__ import annotations

import textwrap

from matplotlib.figure import Figure

from pipeline.figures import panels, theme
from pipeline.metrics.results import Results, interval_notes, records
from pipeline.text import listed, plural

CAPTION = (
    "Step time under a condition over the step time of the same cell, on as many nodes, over the "
    "same link without it, which the table of conditions gives: ratio of medians with its "
    "interval; at the line nothing changes. 'One node at' a speed is a straggler: the last node "
    "computes at this share of the speed of the others. 'Jitter' lengthens the computation of "
    "every node in every step by a share drawn from 0 to the number. 'Receives' is an asymmetric "
    "link: towards a node it has this rate instead. 'Uplink' is an oversubscribed network: half of "
    "the nodes at each of two switches, joined by one cable of this rate. The axis is logarithmic."
)
COMPARES = {"precision"}
NEEDS = "conditions"


def draw(results: Results) -> Figure:
    """A panel for each node count, a band for each condition, a point for each cell."""
    ratios = results.against_plain.dropna(subset=["ratio"])
    if ratios.empty:
        return theme.nothing(results, "no cell finished both with and without a condition")
    nodes = sorted({int(n) for n in ratios["nodes"]})
    bands, arms = list(dict.fromkeys(ratios["condition"])), results.arms(ratios)
    height = 0.8 + len(bands) * (0.2 + 0.14 * len(arms))
    titles = [plural(count, "node") for count in nodes]
    figure, axes_of = panels.grid(len(nodes), height, titles=titles, sharex=True, sharey=True)
    low, high = panels.extent(ratios.rename(columns={"ratio": "value"}))
    looks, step = theme.semantics(results), 0.7 / len(arms)
    # Below the name of a condition stands what it adds to the link.
    names = []
    for band in bands:
        text = str(ratios.loc[ratios["condition"] == band, "adds"].iloc[0])
        lines = textwrap.fill(text, 26)
        names.append(lines if text.partition(" ")[0] == band else f"{band}\n{lines}")
    for count, axes in zip(nodes, axes_of, strict=True):
        for row in records(ratios[ratios["nodes"] == count]):
            above = arms.index(row["arm"]) - (len(arms) - 1) / 2
            panels.mark(axes, row, "ratio", bands.index(row["condition"]) + step * above, looks)
        for place in range(1, len(bands)):
            axes.axhline(place - 0.5, color="#E2E2E2", lw=0.6, zorder=0)
        axes.axvline(1.0, color=theme.GREY, lw=0.9, zorder=1)
        panels.rows_axis(axes, names)
        # Panels stand side by side: a narrow one has room for few ticks.
        most = 9 if len(nodes) == 1 else 4
        panels.log_axis(axes.xaxis, min(1.0, low) / 1.05, max(1.0, high) * 1.05, most)
    title = textwrap.fill("Step time over that without the condition", 66 // len(nodes))
    panels.label(axes_of, title)
    plain = listed(dict.fromkeys(ratios["plain_link"]))
    remark = f"Without a condition: links of {plain}. Bars: {interval_notes(ratios)}."
    return theme.finish(figure, results, ratios, remark)
