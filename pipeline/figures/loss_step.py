"""Loss against step, and how far it is from one device; `python -m pipeline figure loss_step`."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from pipeline.figures import scales, sheets, theme
from pipeline.figures.loss_curves import draw_lines, over_repeats, panel_title
from pipeline.metrics.format import limit
from pipeline.metrics.select import node_counts, pick

CAPTION = (
    "Training loss against the optimiser step, once for all cells at all numbers of nodes, and "
    "its relative deviation from the single-device reference at each. Equal work must give equal "
    "curves, so lines on top of each other are the expected result. Grey lines are the tolerances "
    "of parity over the early steps, which decide. Lines are medians over the repeats, bands "
    "their range."
)
COMPARES = {"precision"}
_SMALLEST, _LARGEST = 1e-9, 1e2


def draw(table: pd.DataFrame) -> Figure:
    """A panel of the loss, then one of the deviation for each node count that has any."""
    nodes = node_counts(table)
    deviation = over_repeats(pick(table, "step", "loss_deviation"))
    compared = [count for count in nodes if count in set(deviation["nodes"])]
    figure, [[first, *others]] = sheets.grid(1 + len(compared), 1.85, per_line=5)
    loss = over_repeats(pick(table, "step", "loss"))
    if loss.empty:
        for axes in others:
            axes.set_visible(False)
        return theme.empty(figure, first, table)
    deviation[["value", "low", "high"]] = deviation[["value", "low", "high"]].clip(
        _SMALLEST, _LARGEST
    )
    shown: set[str] = set()
    for count in nodes:
        shown |= set(draw_lines(first, loss[loss["nodes"] == count], table))
    _finish_panel(first, "all numbers of nodes")
    first.set_ylabel("Loss [nats/token]")
    tolerances = _tolerances(table)
    top = max([float(deviation["high"].max()) if len(deviation) else _SMALLEST, *tolerances]) * 4
    for count, axes in zip(compared, others, strict=True):
        draw_lines(axes, deviation[deviation["nodes"] == count], table)
        for place, tolerance in enumerate(tolerances):
            # The highest is named above its line, the others below, where no other line is near.
            top_one = place == len(tolerances) - 1
            axes.axhline(tolerance, color="#8A8A8A", lw=0.9, ls=(0, (6, 3)), zorder=1)
            axes.annotate(
                limit(tolerance), (0, tolerance), (3, 1.5 if top_one else -1.5),
                ("axes fraction", "data"), "offset points", ha="left",
                va="bottom" if top_one else "top", fontsize=7,
                color="#555555",
            )  # fmt: skip
        axes.set_yscale("log")
        scales.plain_powers(axes.yaxis)
        axes.set_ylim(_SMALLEST / 2, top)
        panel_title(axes, count)
        _finish_panel(axes, axes.get_title())
        # They share one scale, which stands once in each line of panels.
        place = axes.get_subplotspec()
        begins = axes is others[0] or (place is not None and place.is_first_col())
        axes.set_ylabel("Relative deviation" if begins else "")
        axes.tick_params(labelleft=begins)
    what = (
        f"Deviations below {_SMALLEST:g}, exact agreement among them, are drawn at {_SMALLEST:g}."
    )
    return theme.finish(figure, table, shown, what)


def _finish_panel(axes: Axes, title: str) -> None:
    axes.set_title(title)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=4, integer=True))
    axes.set_xlabel("Optimiser step")


def _tolerances(table: pd.DataFrame) -> list[float]:
    """The bands of the loss over the early steps that parity applied, ascending."""
    texts = pick(table, "cell", "parity_loss_early")["text"].dropna()
    return sorted({float(text) for text in texts})
