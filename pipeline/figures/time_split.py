"""Phases of a step's time; `python -m pipeline figure time_split`."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from pipeline.figures import panels, theme
from pipeline.metrics.format import significant
from pipeline.metrics.headline import not_profiled
from pipeline.metrics.results import Results, records
from pipeline.study.profiling import (
    BACKWARD,
    COMMUNICATION,
    DATA,
    FORWARD,
    IN_STEP,
    MARKED,
    OPTIMISER,
    PHASES,
    REST,
)
from pipeline.text import listed

CAPTION = (
    "What share of a step goes where, from profiled runs that are apart from the timed ones: means "
    "over the profiled steps, of each the slowest rank, which ends it. The backward pass ends with "
    "the last gradient of the rank itself. Exposed communication is what the rank then, or before "
    "the step, spends on the exchange, on preparing it (also with one rank) and on waiting for "
    "others; what overlaps with computing counts as computing. At a bar stand its median share of "
    "the step and the time of the step. The batch is read before the step and is no part of it."
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


def draw(results: Results) -> Figure:
    """A panel for each node count and link, one stacked bar for each cell, in per cent."""
    means = results.pick("cell", *(f"phase_mean_seconds:{name}" for name in PHASES))
    if means.empty:
        return theme.nothing(results, "no profiled run finished")
    arms = results.arms(means)
    means["phase"] = means["metric"].str.partition(":")[2]
    spent = means.pivot_table(index=["nodes", "cell"], columns="phase", values="value") * 1000
    shares = results.pick("cell", f"phase_share:{COMMUNICATION}").set_index(["nodes", "cell"])
    figure, places = panels.of_places(
        results, means, 0.6 + 0.2 * len(arms), sharex=True, sharey=True
    )
    for axes, rows in places:
        for row in records(rows.drop_duplicates("cell")):
            place, y = (row["nodes"], row["cell"]), arms.index(row["arm"])
            own = {name: float(spent[name][place]) for name in IN_STEP}
            whole, left = sum(own.values()), 0.0
            for name in IN_STEP:
                width = 100 * own[name] / whole
                axes.barh(y, width, left=left, height=0.66, **_LOOK[name], **_EDGE)
                left += width
            share = 100 * float(shares.loc[place, "value"])
            axes.text(105, y, f"{share:.0f} %, {significant(whole, 2)} ms", va="center",
                      fontsize=theme.LEAST_POINTS, color="#A04000")  # fmt: skip
        panels.rows_axis(axes, arms)
        axes.set(xlim=(0, 100 + 26 * min(len(places), 4)), xticks=[0, 50, 100])
        axes.set_axisbelow(True)
    panels.label([axes for axes, _ in places], "Share of the step [%]")
    entries = [Patch(**_LOOK[name], **_EDGE) for name in IN_STEP]
    counts = listed(sorted({int(n) for n in means["n"]}))
    marked = means[means["phase"].isin(MARKED)].groupby("cell", sort=False)["value"].sum()
    unseen = [str(cell) for cell in marked.index[marked == 0]]
    remarks = [
        f"Bars: means over {counts} steps of profiled runs, of each its slowest rank.",
        *(f"Not profiled: {note}." for note in not_profiled(results)),
        *([f"Without phases, drawn as rest: {listed(unseen)}."] if unseen else []),
        f"Reading the batch, before the step, took {significant(spent[DATA].max(), 2)} ms at most.",
    ]
    return theme.finish(figure, results, means, " ".join(remarks), named=True, extra=entries)
