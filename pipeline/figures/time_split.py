"""Phases of a step's time."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from pipeline.figures import panels, theme
from pipeline.metrics.headline import not_profiled
from pipeline.metrics.results import Results, records
from pipeline.study import profiling
from pipeline.study.profiling import COMMUNICATION, IN_STEP
from pipeline.text import listed, significant

CAPTION = (
    "Where the time of a step goes: means over the profiled steps, of each the slowest rank, which "
    "ends it; at a bar the median share of exposed communication and the time of the step. Exposed "
    "is what a rank spends on the exchange, on preparing it (also with one rank) and on waiting "
    "for others, before the step or once its last gradient is there; what overlaps with computing "
    "counts as computing."
)
COMPARES = {"precision"}
NEEDS = "profile"
# Greys, since colours are those of cells; the exchange alone is warm and hatched, to be seen first.
_LOOK: dict[str, dict[str, Any]] = {
    profiling.FORWARD: {"facecolor": "#DDDDDD", "label": "forward"},
    profiling.BACKWARD: {"facecolor": "#AAAAAA", "label": "backward"},
    COMMUNICATION: {"facecolor": theme.ACCENT, "hatch": "////", "label": "exposed communication"},
    profiling.OPTIMISER: {"facecolor": "#444444", "label": "optimiser (with clipping)"},
    profiling.REST: {"facecolor": "#FFFFFF", "label": "rest of the step"},
}
_EDGE: dict[str, Any] = {"edgecolor": "#333333", "linewidth": 0.5}


def draw(results: Results) -> Figure:
    """A panel for each node count and link, one stacked bar for each cell, in per cent."""
    means = results.pick("cell", *(f"phase_mean_seconds:{name}" for name in profiling.PHASES))
    if means.empty:
        return theme.nothing(results, "no profiled run finished")
    arms = results.arms(means)
    means["phase"] = means["metric"].str.partition(":")[2]
    spent = means.pivot_table(index=["nodes", "cell"], columns="phase", values="value") * 1000
    shares = results.pick("cell", f"phase_share:{COMMUNICATION}").set_index(["nodes", "cell"])
    names, height = theme.names(results, arms)
    figure, places = panels.of_places(results, means, 0.6 + height)
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
            axes.text(105, y, f"{share:.0f} % of {significant(whole, 2)} ms", va="center",
                      fontsize=theme.LEAST_POINTS, color=theme.ACCENT)  # fmt: skip
        panels.rows_axis(axes, names)
        axes.set(xlim=(0, 100 + 29 * min(len(places), 4)), xticks=[0, 50, 100])
        axes.set_axisbelow(True)
    panels.label([axes for axes, _ in places], "Share of the step [%]")
    entries = [Patch(**_LOOK[name], **_EDGE) for name in IN_STEP]
    counts = listed(sorted({int(n) for n in means["n"]}))
    in_marks = means[means["phase"].isin(profiling.MARKED)]
    marked = in_marks.groupby("cell", sort=False)["value"].sum()
    unseen = [str(cell) for cell in marked.index[marked == 0]]
    remarks = [
        f"Bars: means over {counts} steps of profiled runs, of each its slowest rank.",
        *(f"Not profiled: {note}." for note in not_profiled(results)),
        *([f"Without phases, drawn as rest: {listed(unseen)}."] if unseen else []),
        "Reading the batch, before the step, took "
        f"{significant(spent[profiling.DATA].max(), 2)} ms at most.",
    ]
    return theme.finish(figure, results, means, " ".join(remarks), named=True, extra=entries)
