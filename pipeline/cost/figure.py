"""The figure of docs/planner.md: every published point, predicted over measured."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import seaborn as sns

from pipeline.cost.constants import Constants
from pipeline.cost.points import predict_row
from pipeline.cost.score import by_constant, by_neighbour, by_source, points

WAYS = (
    "constant utilisation, known afterwards",
    "nearest neighbour",
    "model, set left out",
    "model, with its own",
)


def draw(path: Path) -> None:
    """Write the figure as PNG: a panel for each way to predict, a colour for each set."""
    rows = []
    for source, each in by_source().items():
        model, own = ([float(getattr(one, which)["step_s_pred"]) for one in each]
                      for which in ("out", "own"))  # fmt: skip
        ways = (by_constant(each), by_neighbour(each), model, own)
        for way, seconds in zip(WAYS, ways, strict=True):
            rows += [
                {"way": way, "points": source, "measured": one.measured, "ratio": s / one.measured}
                for s, one in zip(seconds, each, strict=True)
            ]
    for row in points():
        # Shown where it would be with all constants, and scored nowhere.
        step = predict_row(row, Constants())["step_s_pred"] if row["suspect"] else ""
        if row["status"] == "ok" and step:
            measured = float(row["step_s"])
            rows.append({"way": WAYS[-1], "points": "suspect: not scored", "measured": measured,
                         "ratio": float(step) / measured})  # fmt: skip
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
