"""Loss against step, and how far it is from one device; `python -m pipeline figure loss_step`."""

from __future__ import annotations

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from pipeline.figures import panels, theme
from pipeline.metrics.format import limit
from pipeline.metrics.select import node_counts, pick, plural

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
    loss, deviation = pick(table, "step", "loss"), pick(table, "step", "loss_deviation")
    if loss["value"].isna().all():
        return theme.nothing(table)
    deviation["value"] = deviation["value"].clip(_SMALLEST, _LARGEST)
    compared = [nodes for nodes in node_counts(table) if nodes in set(deviation["nodes"])]
    figure, (first, *others) = panels.grid(1 + len(compared), 1.85, per_line=5)
    _curves(first, loss, table)
    first.set(title="all numbers of nodes", ylabel="Loss [nats/token]")
    texts = pick(table, "cell", "parity_loss_early")["text"].dropna()
    tolerances = sorted({float(text) for text in texts})
    top = 4 * max([deviation["value"].max(), *tolerances], default=1.0)
    for nodes, axes in zip(compared, others, strict=True):
        _curves(axes, deviation[deviation["nodes"] == nodes], table)
        for tolerance in tolerances:
            axes.axhline(tolerance, color=theme.GREY, lw=0.9, ls=(0, (6, 3)), zorder=1)
            axes.annotate(
                limit(tolerance), (0, tolerance), (3, 1.5), ("axes fraction", "data"),
                "offset points", fontsize=theme.LEAST_POINTS, color="#555555",
            )  # fmt: skip
        axes.set(yscale="log", ylim=(_SMALLEST / 2, top), title=plural(nodes, "node"), ylabel="")
        plain_powers(axes)
    if others:
        others[0].set_ylabel("Relative deviation")
    remark = (
        f"Deviations below {_SMALLEST:g}, exact agreement among them, are drawn at {_SMALLEST:g}."
    )
    return theme.finish(figure, table, set(loss["cell"]), remark)


def _curves(axes: Axes, steps: pd.DataFrame, table: pd.DataFrame) -> None:
    sns.lineplot(
        steps, x="step", y="value", estimator="median",
        errorbar=("pi", 100), err_kws={"alpha": 0.15, "lw": 0}, ax=axes, legend=False,
        markersize=4.5, markeredgewidth=0.4, linewidth=1.2, **theme.semantics(table, "cell"),
    )  # fmt: skip
    # Equal work makes equal curves: staggered along the line, each cell still shows its markers.
    drawn = [line for line in axes.lines if np.size(line.get_xdata())]
    for place, line in enumerate(drawn):
        every = max(np.size(line.get_xdata()) // 6, 1)
        line.set_markevery((place * every // len(drawn), every))
    axes.xaxis.set_major_locator(MaxNLocator(nbins=4, integer=True))
    axes.set_xlabel("Optimiser step")


def plain_powers(axes: Axes, axis: str = "y") -> None:
    """Label a logarithmic axis with powers of ten, as `1e-4`."""
    one = axes.yaxis if axis == "y" else axes.xaxis
    one.set_major_locator(LogLocator(numticks=5))
    one.set_minor_locator(NullLocator())
    one.set_major_formatter(FuncFormatter(lambda value, _: limit(value)))
