"""The whole study on one sheet, without its sentence: page and paper say that as text.

    python -m pipeline figure overview --metrics metrics.parquet --verdicts verdicts.json --out DIR

It stands on white, also where the page around it is dark.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.gridspec import SubplotSpec
from matplotlib.ticker import LogLocator, NullLocator

from pipeline.claims.write import count
from pipeline.figures import points, ranked, scales, sheets, theme
from pipeline.figures.against_nodes import bars, draw_arms, name_ends
from pipeline.metrics.headline import last_place, place_name
from pipeline.metrics.parity import EQUAL, UNEQUAL
from pipeline.metrics.select import links, over, over_link, pick, plural, records
from pipeline.tables import summary

CAPTION = (
    "Overview of the study: throughput against the number of nodes over its first and its last "
    "link, how far each cell's loss and gradient norm are from those of a single device as a share "
    "of the tolerance, the share of a step at the largest world that is communication which no "
    "computing hides, and what became of the published claims."
)
# Parity and claims check equal work for themselves.
COMPARES = {"precision"}
USES = "verdicts"
# Green, red, yellow and grey as on the page, and apart under colour blindness.
_WORDS = {"reproduced": "#009E73", "not reproduced": "#D55E00", "undecided": "#7A7A00",
          "not testable here": "#777777"}  # fmt: skip
_THROUGHPUT_INCHES, _LEAST_INCHES, _ROW_INCHES = 2.6, 1.8, 0.2
"""Of the upper panels, and of the lower ones, which have a row for each arm."""

_SMALLEST = 1e-4
"""Share of the tolerance at which exact agreement is drawn, on a logarithmic axis."""


def draw(table: pd.DataFrame, verdicts: Sequence[dict[str, Any]] = ()) -> Figure:
    """Throughput over at most two links, parity, share of communication, verdicts."""
    compared = links(table)
    compared = list(dict.fromkeys([compared[0], compared[-1]])) if compared else []
    values = pick(table, "cell", "tokens_per_second")
    in_order = ranked.fits(values)
    upper_inches = max(_LEAST_INCHES, ranked.inches(values)) if in_order else _THROUGHPUT_INCHES
    heights = (upper_inches, max(_LEAST_INCHES, _ROW_INCHES * values["arm"].nunique()))
    # A study that profiles no run has no panel of communication, one that names no publication none
    # of claims.
    profiled = not pick(table, "profile", "status").empty
    upper, lower = (1, max(len(compared), 1)), (1, 1 + profiled + bool(verdicts))
    if sheets.current().narrow:
        upper, lower = upper[::-1], lower[::-1]
        heights = (upper[0] * heights[0], lower[0] * heights[1])
    figure = plt.figure(figsize=(sheets.current().width, sum(heights)), layout="constrained")
    whole = figure.add_gridspec(2, 1, height_ratios=heights)
    if values.empty:
        return theme.empty(figure, figure.add_subplot(whole[:]), table)
    above, below = whole[0].subgridspec(*upper), whole[1].subgridspec(*lower)
    places = [above[place] for place in range(len(compared))]
    if in_order:
        for place, link in zip(places, compared, strict=True):
            here = values[values["cell"].isin(over_link(table, link))]
            ranked.panel(figure.add_subplot(place), here, table, "Throughput [tokens/s]")
            scales.name_panel(figure.axes[-1], over(link))
    else:
        _throughput(figure, places, values, table, compared)
    _parity(figure.add_subplot(below[0]), table)
    if profiled:
        _communication(figure.add_subplot(below[1]), table)
    if verdicts:
        _claims(figure.add_subplot(below[1 + profiled]), verdicts)
    shown = {cell for link in compared for cell in over_link(table, link)}
    what = bars(values)
    return theme.finish(figure, table, shown & set(values["cell"]), what, named=True)


def _throughput(
    figure: Figure,
    places: Sequence[SubplotSpec],
    values: pd.DataFrame,
    table: pd.DataFrame,
    compared: Sequence[str],
) -> None:
    """Throughput against nodes over each of these links; the panels share their scale."""
    panels: list[Axes] = []
    for place, link in zip(places, compared, strict=True):
        axes = figure.add_subplot(place, sharey=panels[0] if panels else None)
        panels.append(axes)
        draw_arms(axes, values[values["cell"].isin(over_link(table, link))], table)
        scales.name_panel(axes, over(link) or "Throughput")
        axes.tick_params(labelleft=axes in sheets.leftmost(panels))
    for axes in sheets.leftmost(panels):
        axes.set_ylabel("Throughput [tokens/s]")
    low, high = scales.extent(values)
    scales.rate_axis(panels[0], low / 1.2, high * 1.3)
    for axes, link in zip(panels, compared, strict=True):
        name_ends(axes, values[values["cell"].isin(over_link(table, link))], table)


def _parity(axes: Axes, table: pd.DataFrame) -> None:
    """The largest deviation of each arm over its tolerance; left of the line is equal training."""
    words = pick(table, "cell", "parity_verdict")["text"]
    compared = int(words.isin([EQUAL, *UNEQUAL]).sum())
    axes.set_title(f"Same training: {int((words == EQUAL).sum())} of {compared}")
    found = pick(table, "cell", "parity_loss_early", "parity_norm_early")
    if found.empty:
        _say(axes, "not compared")
        return
    found["share"] = (found["value"] / found["text"].astype(float)).clip(lower=_SMALLEST)
    worst = found.groupby(["arm", "metric"], sort=False)["share"].max()
    arms, look = list(dict.fromkeys(found["arm"])), theme.styles(table)
    cell_of = dict(zip(found["arm"], found["cell"], strict=True))
    for place, arm in enumerate(arms):
        loss, norm = (float(worst[arm, f"parity_{what}_early"]) for what in ("loss", "norm"))
        told = f"{arm}: loss at {loss:.2g}, gradient norm at {norm:.2g} of the tolerance"
        axes.add_artist(points.Point(loss, place, told))
        for metric, filled in (("parity_loss_early", True), ("parity_norm_early", False)):
            colour = look[cell_of[arm]].colour
            axes.plot(
                worst[arm, metric], place, marker=look[cell_of[arm]].marker, color=colour, ms=5,
                mfc=colour if filled else "white", ls="", zorder=5,
            )  # fmt: skip
    axes.axvline(1.0, color="#8A8A8A", lw=1.0, ls=(0, (6, 3)))
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(numticks=4))
    axes.xaxis.set_minor_locator(NullLocator())
    scales.plain_powers(axes.xaxis)
    axes.set_xlim(_SMALLEST / 2, max(3.0, float(worst.max()) * 3))
    axes.set_ylim(len(arms) - 0.5, -0.5)
    scales.cell_axis(axes, arms)
    axes.set_xlabel("Deviation / tolerance\n(filled: loss, open: norm)", fontsize=7.5)
    axes.tick_params(labelsize=7)


def _communication(axes: Axes, table: pd.DataFrame) -> None:
    """Bars, one an arm, at the largest world; each of one profiled run, so without intervals."""
    axes.set_title("Communication not hidden")
    rows = [row for row in records(summary.build(table)) if row["world_size"] > 1]
    rows = [row for row in rows if not pd.isna(row["communication_share"])]
    if not rows:
        _say(axes, "not profiled")
        return
    look = theme.styles(table)
    for place, row in enumerate(rows):
        value = 100 * row["communication_share"]
        axes.barh(place, value, height=0.62, color=look[row["cell"]].colour, alpha=0.85)
        told = f"{row['label']}, {plural(int(row['nodes']), 'node')}: {value:.0f} % of a step"
        axes.add_artist(points.Point(value, place, told))
        axes.text(value + 2, place, f"{value:.0f} %", va="center", fontsize=7)
    axes.set_xlim(0, 112)
    axes.set_xticks([0, 50, 100])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    scales.cell_axis(axes, [row["arm"] for row in rows])
    axes.grid(False, axis="y")
    axes.set_xlabel(f"Share of a step [%]\nat {place_name(last_place(table))}", fontsize=7.5)
    axes.tick_params(labelsize=7)


def _claims(axes: Axes, verdicts: Sequence[dict[str, Any]]) -> None:
    """How many claims have each of the four verdicts, one effect counted once."""
    axes.set_title("Published claims")
    counts = count(verdicts)
    for place, (word, number) in enumerate(counts.items()):
        axes.barh(place, number, height=0.62, color=_WORDS[word])
        axes.text(number, place, f" {number}", va="center", fontsize=8, color="#222222")
    axes.set_xlim(0, max(counts.values()) * 1.25)
    axes.set_xticks([])
    axes.spines["bottom"].set_visible(False)
    axes.set_ylim(len(counts) - 0.5, -0.5)
    axes.grid(False)
    scales.cell_axis(axes, [word.replace("not testable ", "not testable\n") for word in counts])
    axes.tick_params(labelsize=7)


def _say(axes: Axes, text: str) -> None:
    axes.axis("off")
    axes.text(0.5, 0.5, text, ha="center", va="center", transform=axes.transAxes, fontsize=8)
