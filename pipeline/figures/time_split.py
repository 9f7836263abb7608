"""What a step's time is spent on; `python -m pipeline figure time_split`."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from pipeline.figures import panels, points, theme
from pipeline.metrics.format import significant
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
    "of the step. The batch is read before the step and is no part "
    "of it."
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
_EDGE: dict[str, Any] = {"edgecolor": "#333333", "linewidth": 0.5}


def draw(table: pd.DataFrame) -> Figure:
    """A panel for each node count and link, one stacked bar for each cell, in per cent."""
    means = pick(table, "cell", *(f"phase_mean_seconds:{name}" for name in PHASES))
    if means.empty:
        asked = not pick(table, "profile", "status").empty
        return theme.nothing(
            table, "no run finished" if asked else "the study asks for no profiled runs"
        )
    arms = panels.arms_of(table, means)
    means["phase"] = means["metric"].str.partition(":")[2]
    spent = means.pivot_table(index=["nodes", "cell"], columns="phase", values="value") * 1000
    shares = pick(table, "cell", f"phase_share:{COMMUNICATION}").set_index(["nodes", "cell"])
    figure, places = panels.of_places(table, means, 0.6 + 0.2 * len(arms), sharex=True, sharey=True)
    for panel in places:
        axes = panel.axes
        for row in records(panel.rows.drop_duplicates("cell")):
            place, y = (panel.nodes, row["cell"]), arms.index(row["arm"])
            own = {name: float(spent[name][place]) for name in IN_STEP}
            whole, left = sum(own.values()), 0.0
            for name in IN_STEP:
                width = 100 * own[name] / whole
                axes.barh(y, width, left=left, height=0.66, **_LOOK[name], **_EDGE)
                left += width
            share = 100 * float(shares.loc[place, "value"])
            axes.text(105, y, f"{share:.0f} %, {significant(whole, 2)} ms", va="center",
                      fontsize=theme.LEAST_POINTS, color="#A04000")  # fmt: skip
            axes.add_artist(points.Point(50, y, _words(row, own)))
        panels.rows_axis(axes, arms)
        axes.set(xlim=(0, 100 + 26 * min(len(places), 4)), xticks=[0, 50, 100])
        axes.set_axisbelow(True)
    panels.label([panel.axes for panel in places], "Share of the step [%]")
    entries = [Patch(**_LOOK[name], **_EDGE) for name in IN_STEP]
    remark = (
        f"{_remarks(table, means)} Reading the batch, before the step, took "
        f"{significant(spent[DATA].max(), 2)} ms at most."
    )
    return theme.finish(figure, table, set(means["cell"]), remark, named=True, extra=entries)


def _words(row: dict[str, Any], own: dict[str, float]) -> str:
    """Milliseconds of every part of the step, over its bar."""
    parts = ", ".join(f"{_LOOK[name]['label']} {significant(own[name])} ms" for name in IN_STEP)
    nodes, steps = plural(int(row["nodes"]), "node"), plural(int(row["n"]), "step")
    return f"{row['label']}, {nodes}, {steps}: {parts}"


def _remarks(table: pd.DataFrame, means: pd.DataFrame) -> str:
    """What the bars are made of, and what they cannot tell."""
    shares = means[means["phase"] == COMMUNICATION]
    counts = listed(sorted({int(n) for n in shares["n"]}))
    remarks = [
        f"Bars: means over {counts} steps of profiled runs, of each its slowest rank.",
        *(f"Not profiled: {note}." for note in not_profiled(table)),
    ]
    unseen = unmarked(table)
    if unseen:
        remarks.append(
            f"{listed(unseen)} {'mark' if len(unseen) > 1 else 'marks'} no phases: of the step only"
            " its time is seen, drawn as its rest."
        )
    if ((shares["world_size"] == 1) & (shares["value"] > 0)).any():
        remarks.append(
            "With one rank nothing is exchanged; what is shown there is what the strategy does to "
            "prepare it."
        )
    return " ".join(remarks)
