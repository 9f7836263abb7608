"""What a step's time is spent on; `python -m pipeline figure time_split`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from pipeline.figures import points, sheets, theme
from pipeline.figures.panels import arms_of, name_cells, outer, panels
from pipeline.metrics.format import significant
from pipeline.metrics.network_bound import least_milliseconds
from pipeline.metrics.select import listed, not_profiled, pick, plural, records, unmarked
from pipeline.study.profiling import (
    BACKWARD,
    COMMUNICATION,
    DATA,
    FORWARD,
    IN_STEP,
    OPTIMISER,
    PHASES,
    REST,
)

CAPTION = (
    "What share of a step goes where, from profiled runs that are apart from the timed ones: means "
    "over the profiled steps, of each the slowest rank, which ends it. The backward pass ends with "
    "the last gradient of the rank itself. Exposed communication is what the rank then, or before "
    "the step, spends on the exchange, on preparing it and on waiting for others; what overlaps "
    "with computing counts as computing. At a bar stand its median share of the step and the time "
    "of the step. A black line below a bar is as long as the sum of the gradients needs on a node's"
    " link at least, by rate and bytes; what a strategy hides of that, computing covers. The batch "
    "is read before the step and is no part of it."
)
COMPARES = {"precision"}
NEEDS = "profile"
# Okabe and Ito; the exchange alone is warm and hatched, so that it is seen first, in grey too.
_LOOK: dict[str, dict[str, Any]] = {
    FORWARD: {"facecolor": "#56B4E9", "label": "forward"},
    BACKWARD: {"facecolor": "#0072B2", "label": "backward"},
    COMMUNICATION: {"facecolor": "#D55E00", "hatch": "////", "label": "exposed communication"},
    OPTIMISER: {"facecolor": "#009E73", "label": "optimiser (with clipping)"},
    REST: {"facecolor": "#BBBBBB", "label": "rest of the step"},
}
_BOUND: dict[str, Any] = {"color": "#000000", "lw": 1.6, "solid_capstyle": "butt"}
_EDGE: dict[str, Any] = {"edgecolor": "#333333", "linewidth": 0.5}


def draw(table: pd.DataFrame) -> Figure:
    """A panel for each node count and link, one stacked bar for each cell, in per cent."""
    means = pick(table, "cell", *(f"phase_mean_seconds:{name}" for name in PHASES))
    if means.empty:
        return _nothing(table)
    arms = arms_of(table, means)
    means["phase"] = means["metric"].str.partition(":")[2]
    spent = means.pivot_table(index=["nodes", "cell"], columns="phase", values="value") * 1000
    shares = pick(table, "cell", f"phase_share:{COMMUNICATION}").set_index(["nodes", "cell"])
    bounds = least_milliseconds(table)
    figure, found = panels(table, means, 0.5 + 0.2 * len(arms), sharex=True, sharey=True)
    for panel in found:
        for row in records(panel.rows.drop_duplicates("cell")):
            place = (panel.nodes, row["cell"])
            own, share = spent.loc[place], float(shares.loc[place, "value"])
            _bar(panel.axes, arms.index(row["arm"]), own, share)
            panel.axes.add_artist(points.Point(50, arms.index(row["arm"]), _told(row, own)))
            if place in bounds:
                _bound(panel.axes, arms.index(row["arm"]), own, bounds[place])
        _finish_panel(panel.axes, len(arms), 100 + 26 * min(len(found), 4))
    name_cells(found, arms)
    for axes in outer(found)[1]:
        axes.set_xlabel("Share of the step [%]")
        axes.tick_params(labelbottom=True)
    entries: list[Any] = [Patch(**_LOOK[name], **_EDGE) for name in IN_STEP]
    if bounds:
        entries.append(Line2D([], [], label="least time of the gradients on a link", **_BOUND))
    remarks = f"{_remarks(table, means)} {_data(spent)}"
    shown = set(means["cell"])
    return theme.finish(figure, table, shown, remarks, named=True, extra=entries)


def _data(spent: pd.DataFrame) -> str:
    return (
        f"Reading the batch, before the step, took {significant(spent[DATA].max(), 2)} ms at most."
    )


def _told(row: Mapping[str, Any], own: pd.Series) -> str:
    """Milliseconds of every part of the step, over its bar."""
    parts = [f"{_LOOK[name]['label']} {significant(own[name])} ms" for name in IN_STEP]
    steps = plural(int(row["n"]), "step")
    return f"{row['label']}, {plural(int(row['nodes']), 'node')}, {steps}: {', '.join(parts)}"


def _bar(axes: Axes, place: int, own: pd.Series, share: float) -> None:
    left, whole = 0.0, float(own[list(IN_STEP)].sum())
    for name in IN_STEP:
        width = 100 * float(own[name]) / whole
        axes.barh(place, width, left=left, height=0.66, **_LOOK[name], **_EDGE)
        left += width
    text = f"{100 * share:.0f} %, {significant(whole, 2)} ms"
    axes.text(105, place, text, va="center", ha="left", fontsize=7, color="#A04000")


def _bound(axes: Axes, place: int, own: pd.Series, least: float) -> None:
    """A line from where the exposed communication begins, cut at the end of the axis."""
    whole, left = float(own[list(IN_STEP)].sum()), 0.0
    for name in IN_STEP[: IN_STEP.index(COMMUNICATION)]:
        left += 100 * float(own[name]) / whole
    axes.plot([left, left + 100 * least / whole], [place + 0.42] * 2, **_BOUND)


def _finish_panel(axes: Axes, num_arms: int, right: float) -> None:
    axes.set_ylim(num_arms - 0.5, -0.5)
    axes.set_xlim(0, right)
    axes.set_xticks([0, 50, 100])
    axes.grid(True, axis="x")
    axes.grid(False, axis="y")
    axes.set_axisbelow(True)


def _nothing(table: pd.DataFrame) -> Figure:
    """Without profiled runs, or where none of them finished."""
    figure, [[axes]] = sheets.grid(1, 2.0)
    if pick(table, "profile", "status").empty:
        text = "the study asks for no profiled runs (key profile)"
        axes.text(0.5, 0.5, text, ha="center", va="center", transform=axes.transAxes)
        return theme.finish(figure, table, (), "")
    return theme.empty(figure, axes, table)


def _remarks(table: pd.DataFrame, means: pd.DataFrame) -> str:
    """What the bars are made of, and what they cannot tell."""
    shares = means[means["phase"] == COMMUNICATION]
    counts = listed(sorted({int(n) for n in shares["n"]}))
    said = [
        f"Bars: means over {counts} steps of profiled runs, of each its slowest rank.",
        *(f"Not profiled: {note}." for note in not_profiled(table)),
    ]
    unseen = unmarked(table)
    if unseen:
        said.append(
            f"{listed(unseen)} {'mark' if len(unseen) > 1 else 'marks'} no phases: of the step only"
            " its time is seen, drawn as its rest."
        )
    if ((shares["world_size"] == 1) & (shares["value"] > 0)).any():
        said.append(
            "With one rank nothing is exchanged; what is shown there is what the strategy does to "
            "prepare it."
        )
    return " ".join(said)
