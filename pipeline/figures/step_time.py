"""Distribution of step times; `python -m pipeline figure step_time`."""

from __future__ import annotations

import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from pipeline.figures import panels, points, theme
from pipeline.metrics.format import significant
from pipeline.metrics.select import pick, plural

CAPTION = (
    "Spread of the timed step times over all repeats: each over the median of its cell at that "
    "number of nodes, which the table of step times gives. Boxes hold the middle half, whiskers "
    "nine tenths, and every other step is a dot. The axis is logarithmic."
)
COMPARES = {"precision"}


def draw(table: pd.DataFrame) -> Figure:
    """A panel for each node count and link, one box for each cell."""
    steps = pick(table, "step", "step_seconds")
    steps = steps[steps["timed"].fillna(False).astype(bool)]
    if steps.empty:
        return theme.nothing(table)
    median = steps.groupby(["cell", "nodes"])["value"].transform("median")
    steps = steps.assign(spread=steps["value"] / median)
    arms = panels.arms_of(table, steps)
    looks = theme.styles(table)
    palette = {arm: looks[cell].colour for arm, cell in zip(steps["arm"], steps["cell"])}  # noqa: B905
    figure, places = panels.of_places(table, steps, 0.6 + 0.2 * len(arms), sharex=True, sharey=True)
    for panel in places:
        sns.boxplot(
            panel.rows, x="spread", y="arm", order=arms, hue="arm", palette=palette, legend=False,
            ax=panel.axes, whis=(5, 95), width=0.6, fill=False, linewidth=0.9, fliersize=2.5,
            medianprops={"linewidth": 2.0},
        )  # fmt: skip
        panels.rows_axis(panel.axes, arms)
        for arm, rows in panel.rows.groupby("arm", sort=False):
            panel.axes.add_artist(points.Point(1.0, arms.index(str(arm)), _words(rows)))
    low, high = float(steps["spread"].min()), float(steps["spread"].max())
    for panel in places:
        panels.log_axis(panel.axes.xaxis, low / 1.03, high * 1.03, most=5)
    panels.label([panel.axes for panel in places], "Step time / median")
    remark = "Time of a step: its slowest rank."
    return theme.finish(figure, table, set(steps["cell"]), remark, named=True)


def _words(steps: pd.DataFrame) -> str:
    """Median and middle half of the steps that a box holds, over it."""
    low, middle, high = (
        significant(1000 * float(steps["value"].quantile(at))) for at in (0.25, 0.5, 0.75)
    )
    runs = plural(steps["repeat"].nunique(), "run")
    return (
        f"{steps['label'].iloc[0]}, {plural(int(steps['nodes'].iloc[0]), 'node')}: half of "
        f"{plural(len(steps), 'step')} in {runs} took {low} to {high} ms, median {middle} ms"
    )
