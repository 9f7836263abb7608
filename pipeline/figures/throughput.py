"""Throughput against nodes; `python -m pipeline figure throughput`."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from pipeline.figures import ranked, scales, sheets, theme
from pipeline.figures.against_nodes import bars, draw_arms, ideal_lines, name_ends
from pipeline.figures.overlay import legend_label, published_step_seconds
from pipeline.metrics.select import links, over, over_link, pick, records

CAPTION = (
    "Training throughput: the tokens of one step divided by the median step time, with its "
    "interval; the line below says how that was made and what it covers. Where cells ran at "
    "several numbers of nodes, both axes are logarithmic, dashed grey lines show ideal scaling "
    "from each base, points are moved sideways a little so that none hides another, and between "
    "the points that a line joins nothing was measured."
)
COMPARES = {"precision"}


def draw(table: pd.DataFrame) -> Figure:
    """Tokens per second of every cell at every node count, a panel for each link."""
    values = pick(table, "cell", "tokens_per_second")
    if ranked.fits(values) and not published_step_seconds(table):
        return ranked.draw(table, values, "Throughput [tokens/s]", bars(values))
    compared = links(table)
    figure, [panels] = sheets.grid(len(compared), 2.2, sharey=True)
    if values.empty:
        return theme.empty(figure, panels[0], table)
    bases = pick(table, "cell", "base_tokens_per_second")
    scale = dict(zip(bases["base"], bases["value"], strict=True))
    ideals, shown = pick(table, "cell", "ideal_speedup"), set[str]()
    published: dict[float, str] = {}
    entries: Sequence[Line2D] = []
    for link, axes in zip(compared, panels, strict=True):
        own = over_link(table, link)
        here = values[values["cell"].isin(own)]
        arms = draw_arms(axes, here, table)
        published |= _published(axes, here, table, arms)
        entries = ideal_lines(axes, ideals[ideals["cell"].isin(own)], scale)
        shown |= set(here["cell"])
        scales.name_panel(axes, over(link))
    # The ideal may lie far above everything measured; the measurements set the scale.
    low, high = scales.extent(values)
    high = max([high, *published])
    scales.rate_axis(panels[0], low / 1.2, high * 1.3)
    for axes in sheets.leftmost(panels):
        axes.set_ylabel("Throughput [tokens/s]")
    for link, axes in zip(compared, panels, strict=True):
        name_ends(axes, values[values["cell"].isin(over_link(table, link))], table)
    stars = [theme.provenance_entry(theme.PUBLISHED, label) for label in published.values()]
    what = bars(values)
    return theme.finish(figure, table, shown, what, extra=[*entries, *stars[:1]], named=True)


def _published(
    axes: Axes, values: pd.DataFrame, table: pd.DataFrame, arms: list[str]
) -> dict[float, str]:
    """Draw the published rates of the same settings; rate -> what the legend says of them."""
    numbers, drawn = published_step_seconds(table), {}
    for row in records(values):
        number = numbers.get((row["cell"], int(row["nodes"])))
        if number is not None:
            rate = float(row["global_batch_tokens"]) / number.value
            colour = theme.styles(table)[row["cell"]].colour
            x = theme.dodge([int(row["nodes"])], arms.index(row["arm"]), len(arms))
            axes.plot(x, [rate], **theme.provenance(theme.PUBLISHED, colour))
            drawn[rate] = legend_label(numbers)
    return drawn
