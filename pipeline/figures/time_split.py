"""What a step's time is spent on; `python -m pipeline figure time_split`."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from pipeline.figures import scales, theme
from pipeline.figures.loss_curves import panel_title
from pipeline.metrics.select import (
    cells,
    listed,
    node_counts,
    not_profiled,
    pick,
    records,
    unmarked,
)
from pipeline.study.profiling import (
    BACKWARD,
    COMMUNICATION,
    DATA,
    FORWARD,
    OPTIMISER,
    PHASES,
    REST,
)

CAPTION = (
    "How the time of a step divides, from profiled runs that are apart from the timed ones: means "
    "over the profiled steps and the ranks. The backward pass ends with the last gradient of the "
    "rank itself. Exposed communication is what the rank then, or before the step, spends on the "
    "exchange, on preparing it and on waiting for others; what overlaps with computing counts as "
    "computing. The number at a bar is its median share of the step. The batch is read before the "
    "step, so data is no part of step times elsewhere."
)
COMPARES = {"precision"}
# Okabe and Ito; the exchange alone is warm and hatched, so that it is seen first, in grey too.
_LOOK: dict[str, dict[str, Any]] = {
    FORWARD: {"facecolor": "#56B4E9", "label": "forward"},
    BACKWARD: {"facecolor": "#0072B2", "label": "backward"},
    COMMUNICATION: {"facecolor": "#D55E00", "hatch": "////", "label": "exposed communication"},
    OPTIMISER: {"facecolor": "#009E73", "label": "optimiser (with clipping)"},
    REST: {"facecolor": "#BBBBBB", "label": "rest of the step"},
    DATA: {"facecolor": "white", "hatch": "....", "label": "data (before the step)"},
}
_EDGE: dict[str, Any] = {"edgecolor": "#333333", "linewidth": 0.5}


def draw(table: pd.DataFrame) -> Figure:
    """One panel for each node count, one stacked bar for each cell, in milliseconds."""
    nodes, names = node_counts(table), cells(table)
    means = pick(table, "cell", *(f"phase_mean_seconds:{name}" for name in PHASES))
    ran = names[names["cell"].isin(means["cell"])]
    figure, [panels] = theme.grid(len(nodes), 1.0 + 0.3 * max(len(ran), 1), sharex=True)
    if means.empty:
        return _nothing(figure, panels[0], table)
    means["phase"] = means["metric"].str.partition(":")[2]
    spent = means.pivot_table(index=["nodes", "cell"], columns="phase", values="value") * 1000
    shares = pick(table, "cell", f"phase_share:{COMMUNICATION}").set_index(["nodes", "cell"])
    for count, axes in zip(nodes, panels, strict=True):
        for place, cell in enumerate(ran["cell"]):
            if (count, cell) in spent.index:
                own = spent.loc[(count, cell)]
                _bar(axes, place, own, float(shares.loc[(count, cell), "value"]))
        _finish_panel(axes, count, list(ran["cell"]), first=axes is panels[0])
    # Set once for all panels, after all are drawn: they share the axis.
    panels[0].set_xlim(0, float(spent[list(PHASES)].sum(axis=1).max()) * 1.24)
    entries = [Patch(**_LOOK[name], **_EDGE) for name in PHASES]
    return theme.finish(figure, table, (), _remarks(table, ran), lines=False, extra=entries)


def _bar(axes: Axes, place: int, own: pd.Series, share: float) -> None:
    left = 0.0
    for name in PHASES:
        width = float(own[name])
        axes.barh(place, width, left=left, height=0.66, **_LOOK[name], **_EDGE)
        left += width
    text = f" {100 * share:.0f} %"
    axes.text(left, place, text, va="center", ha="left", fontsize=6.5, color="#A04000")


def _finish_panel(axes: Axes, nodes: int, order: list[str], *, first: bool) -> None:
    panel_title(axes, nodes)
    scales.cell_axis(axes, order if first else [])
    axes.set_ylim(len(order) - 0.5, -0.5)
    axes.set_xlabel("Time [ms]")
    axes.grid(True, axis="x")
    axes.grid(False, axis="y")
    axes.set_axisbelow(True)


def _nothing(figure: Figure, axes: Axes, table: pd.DataFrame) -> Figure:
    """Without profiled runs, or where none of them finished."""
    if pick(table, "profile", "status").empty:
        text = "the study asks for no profiled runs\n(key profile)"
        axes.text(0.5, 0.5, text, ha="center", va="center", transform=axes.transAxes)
        return theme.finish(figure, table, (), "")
    return theme.empty(figure, axes, table)


def _remarks(table: pd.DataFrame, ran: pd.DataFrame) -> str:
    """What the short names mean, what the bars are made of, and what they cannot tell."""
    shares = pick(table, "cell", f"phase_mean_seconds:{COMMUNICATION}")
    counts = listed(sorted({int(n) for n in shares["n"]}))
    said = [
        f"Bars: means over {counts} steps of profiled runs.",
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
    words = [f"{row['arm']}: {row['arm_label']}" for row in records(ran.drop_duplicates("arm"))]
    ends = {
        row["cell"].removeprefix(row["arm"]): row["link"]
        for row in records(ran)
        if row["cell"] != row["arm"]
    }
    words += [f"{end} at the end: {link}" for end, link in ends.items()]
    return " ".join([*said, f"Cells: {'; '.join(words)}."])
