"""Distribution of step times."""

from __future__ import annotations

import seaborn as sns
from matplotlib.figure import Figure

from pipeline.figures import panels, theme
from pipeline.metrics.results import Results

CAPTION = (
    "Spread of the timed step times over all repeats: each over the median of its cell at that "
    "number of nodes. Boxes hold the middle half, whiskers nine tenths, and dots are the steps "
    "beyond."
)
NEEDS = "spread"
COMPARES = {"precision"}


def draw(results: Results) -> Figure:
    """A panel for each node count and link, one box for each cell."""
    steps = results.pick("step", "step_seconds")
    steps = steps[steps["timed"].fillna(False).astype(bool)]
    if steps.empty:
        return theme.nothing(results)
    median = steps.groupby(["cell", "nodes"])["value"].transform("median")
    steps = steps.assign(spread=steps["value"] / median)
    arms = results.arms(steps)
    palette = theme.semantics(results)["palette"]
    names, height = theme.names(results, arms)
    figure, places = panels.of_places(results, steps, 0.6 + height)
    low, high = steps["spread"].min(), steps["spread"].max()
    for axes, rows in places:
        sns.boxplot(
            rows, x="spread", y="arm", order=arms, hue="arm", palette=palette, legend=False,
            ax=axes, whis=(5, 95), width=0.6, fill=False, linewidth=0.9, fliersize=2.5,
            medianprops={"linewidth": 2.0},
        )  # fmt: skip
        panels.rows_axis(axes, names)
        panels.log_axis(axes.xaxis, low / 1.03, high * 1.03, most=5)
    panels.label([axes for axes, _ in places], "Step time / median")
    remark = "Time of a step: its slowest rank."
    return theme.finish(figure, results, steps, remark, named=True)
