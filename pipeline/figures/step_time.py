"""Distribution of step times; `python -m pipeline figure step_time`."""

from __future__ import annotations

import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pipeline.figures import scales, theme
from pipeline.figures.loss_curves import panel_title
from pipeline.figures.overlay import legend_label, published_step_seconds
from pipeline.metrics.select import cells, node_counts, pick

CAPTION = (
    "Distribution of the timed step times over all repeats. Boxes hold the middle half with the "
    "median, whiskers reach to 1.5 box lengths, and every step is a dot, with a line of dots for "
    "each repeat, so that slow steps and slow repeats are seen. The axis is logarithmic."
)
COMPARES = {"precision"}


def draw(table: pd.DataFrame) -> Figure:
    """One panel for each node count, one box for each cell."""
    nodes, names = node_counts(table), cells(table)
    steps = pick(table, "step", "step_seconds")
    steps = steps[steps["timed"].fillna(False).astype(bool)]
    ran = names[names["cell"].isin(steps["cell"])]
    height = 1.0 + 0.34 * max(len(ran), 1)
    figure, [panels] = theme.grid(len(nodes), height, sharex=True)
    if steps.empty:
        return theme.empty(figure, panels[0], table)
    published = published_step_seconds(table)
    drawn = [*(steps["value"] * 1000), *(found.value * 1000 for found in published.values())]
    for count, axes in zip(nodes, panels, strict=True):
        _panel(axes, steps[steps["nodes"] == count], list(ran["cell"]), table)
        for place, cell in enumerate(ran["cell"]):
            if (cell, count) in published:
                milliseconds = published[cell, count].value * 1000
                axes.plot([milliseconds], [place], **theme.provenance(theme.PUBLISHED))
        panel_title(axes, count)
        scales.decade_axis(axes, min(drawn), max(drawn))
        axes.set_xlabel("Step time [ms]")
        axes.grid(True, axis="x")
        axes.grid(False, axis="y")
        scales.cell_axis(axes, list(ran["cell"]) if axes is panels[0] else [])
    extra = [theme.provenance_entry(theme.PUBLISHED, legend_label(published))] if published else []
    what = "Time of a step: its slowest rank."
    return theme.finish(figure, table, set(ran["cell"]), what, lines=False, extra=extra)


def _panel(axes: Axes, steps: pd.DataFrame, order: list[str], table: pd.DataFrame) -> None:
    look = theme.styles(table)
    palette = {cell: look[cell].colour for cell in order}
    shared = {"x": steps["value"] * 1000, "y": steps["cell"], "order": order, "ax": axes}
    sns.boxplot(
        **shared, hue=steps["cell"], palette=palette, hue_order=order, showfliers=False, width=0.62,
        linewidth=1.0, fill=False, legend=False,
    )  # fmt: skip
    axes.set_ylim(len(order) - 0.5, -0.5)
    for place, cell in enumerate(order):
        own = steps[steps["cell"] == cell]
        repeats = own["repeat"].astype(int)
        # One line of dots a repeat, inside the box: a slow repeat stands out as a line.
        offset = (repeats - repeats.max() / 2) * 0.5 / (repeats.max() + 1) if len(own) else repeats
        sns.scatterplot(
            x=own["value"] * 1000, y=place + offset, ax=axes, s=7, alpha=0.45, linewidth=0,
            color=palette[cell], marker=look[cell].marker, legend=False,
        )  # fmt: skip
