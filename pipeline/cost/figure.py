"""The figure of docs/planner.md: every published point, predicted over measured."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import seaborn as sns

from pipeline.cost.score import by_constant, by_neighbour, by_source, scored

WAYS = (
    "constant utilisation, known afterwards",
    "nearest neighbour",
    "model, set left out",
    "model, with its own",
)


def draw(path: Path) -> None:
    """Write the figure as PNG: a panel for each way to predict, a colour for each set."""
    rows = []
    for source, points in by_source().items():
        others = [row for row in scored() if row.source != source]
        model = [float(row.out["step_s_pred"]) for row in points]
        own = [float(row.own["step_s_pred"]) for row in points]
        ways = (by_constant(points), by_neighbour(points, others), model, own)
        for way, seconds in zip(WAYS, ways, strict=True):
            rows += [
                {"way": way, "points": source, "measured": row.measured, "ratio": s / row.measured}
                for s, row in zip(seconds, points, strict=True)
            ]
    grid = sns.relplot(
        pd.DataFrame(rows), x="measured", y="ratio", col="way", col_wrap=2,
        hue="points", style="points", height=2.8, aspect=1.5, s=22,
        alpha=0.7, linewidth=0, palette="husl",
    )  # fmt: skip
    grid.set(xscale="log", yscale="log", ylim=(0.1, 10), xlabel="measured step (s)")
    grid.set_ylabels("predicted / measured")
    grid.set_titles("{col_name}")
    for axes in grid.axes.flat:
        axes.axhline(1.0, color="0.3", linewidth=0.8)
    grid.savefig(path, dpi=110)
