"""Distribution of step times; `python -m pipeline figure step_time`."""

from __future__ import annotations

import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from pipeline.figures import marks, points, scales, sheets, theme
from pipeline.figures.overlay import legend_label, published_step_seconds
from pipeline.figures.panels import Panel, arms_of, name_cells, outer, panels
from pipeline.metrics.format import significant
from pipeline.metrics.select import pick, plural

CAPTION = (
    "Distribution of the timed step times over all repeats. Boxes hold the middle half with the "
    "median in bold, whiskers reach to 1.5 box lengths, and every step is a dot, with a line "
    "of dots for each repeat, so that slow steps and slow repeats are seen. The axis is "
    "logarithmic."
)
COMPARES = {"precision"}


def draw(table: pd.DataFrame) -> Figure:
    """A panel for each node count and link, one box for each cell."""
    steps = pick(table, "step", "step_seconds")
    steps = steps[steps["timed"].fillna(False).astype(bool)]
    if steps.empty:
        figure, [[axes]] = sheets.grid(1, 2.0)
        return theme.empty(figure, axes, table)
    arms = arms_of(table, steps)
    height = 0.5 + 0.2 * len(arms)
    figure, found = panels(table, steps, height, sharex=True, sharey=True)
    published = published_step_seconds(table)
    drawn = [*(steps["value"] * 1000), *(number.value * 1000 for number in published.values())]
    for panel in found:
        _panel(panel, arms, table)
        for cell in panel.rows["cell"].unique():
            if (cell, panel.nodes) in published:
                milliseconds = published[cell, panel.nodes].value * 1000
                place = arms.index(_arm(panel.rows, cell))
                panel.axes.plot([milliseconds], [place], **theme.provenance(theme.PUBLISHED))
        scales.decade_axis(panel.axes, min(drawn), max(drawn))
        panel.axes.grid(True, axis="x")
        panel.axes.grid(False, axis="y")
    name_cells(found, arms)
    for axes in outer(found)[1]:
        axes.set_xlabel("Step time [ms]")
        axes.tick_params(labelbottom=True)
    extra = [theme.provenance_entry(theme.PUBLISHED, legend_label(published))] if published else []
    what = "Time of a step: its slowest rank."
    return theme.finish(figure, table, set(steps["cell"]), what, named=True, extra=extra)


def _arm(rows: pd.DataFrame, cell: str) -> str:
    return str(rows.loc[rows["cell"] == cell, "arm"].iloc[0])


def _told(steps: pd.DataFrame) -> str:
    """Median and middle half of the steps that a box holds, over it."""
    low, middle, high = (1000 * float(steps["value"].quantile(at)) for at in (0.25, 0.5, 0.75))
    place = f"{steps['label'].iloc[0]}, {plural(int(steps['nodes'].iloc[0]), 'node')}"
    return (
        f"{place}: half of {plural(len(steps), 'step')} in "
        f"{plural(steps['repeat'].nunique(), 'run')} took "
        f"{significant(low)} to {significant(high)} ms, median {significant(middle)} ms"
    )


def _panel(panel: Panel, order: list[str], table: pd.DataFrame) -> None:
    look, steps = theme.styles(table), panel.rows
    cell_of = dict(zip(steps["arm"], steps["cell"], strict=True))
    palette = {arm: look[cell].colour for arm, cell in cell_of.items()}
    sns.boxplot(
        x=steps["value"] * 1000, y=steps["arm"], order=order, ax=panel.axes, hue=steps["arm"],
        palette=palette, hue_order=list(palette), showfliers=False, width=0.66, linewidth=0.9,
        fill=False, legend=False, medianprops={"linewidth": 2.8, "zorder": 6},
    )  # fmt: skip
    panel.axes.set_ylim(len(order) - 0.5, -0.5)
    for place, arm in enumerate(order):
        own = steps[steps["arm"] == arm]
        repeats = own["repeat"].astype(int)
        # One line of dots a repeat, inside the box: a slow repeat stands out as a line.
        offset = (repeats - repeats.max() / 2) * 0.5 / (repeats.max() + 1) if len(own) else repeats
        if len(own):
            panel.axes.add_artist(points.Point(1000 * own["value"].median(), place, _told(own)))
            marks.dots(
                panel.axes, own["value"] * 1000, place + offset, s=6, alpha=0.45, linewidth=0,
                color=palette[arm], marker=look[cell_of[arm]].marker,
            )  # fmt: skip
    panel.axes.set(xlabel="", ylabel="")
