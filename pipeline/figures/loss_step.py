"""Loss against step, and how far it is from one device."""

from __future__ import annotations

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from pipeline.figures import panels, theme
from pipeline.metrics.cells import LOSS_STEPS
from pipeline.metrics.format import limit, scientific
from pipeline.metrics.headline import end_of_training, place_name
from pipeline.metrics.results import Results, records
from pipeline.text import listed, plural

CAPTION = (
    "Training loss against the optimiser step, the median over all links, numbers of nodes and "
    "repeats (of a batch that grows with the nodes: of the largest), and its largest relative "
    "deviation from that of its reference, in fp32 where there is one. Equal work must give equal "
    "curves, one on top of the other. Grey lines: tolerances of parity over the early steps."
)
COMPARES = {"precision"}
# Below the rounding of 32 bits a deviation says nothing, nor does a change of loss by hundredths in
# a few steps, which an axis of its own height would draw as a mountain.
_SMALLEST, _LARGEST, _LEAST_NATS = 1e-8, 1e2, 0.5
_ALIKE = ("precision", "global_batch_tokens")


def draw(results: Results) -> Figure:
    """A panel of the loss, and one of the deviation where any cell has a reference.

    Where a study compares cells that take other steps, a panel of the loss over bytes sent; where
    runs are of several lengths, one over time.
    """
    loss, deviation = (results.pick("step", name) for name in ("loss", "loss_deviation"))
    if loss["value"].isna().all():
        return theme.nothing(results)
    # Of batches that differ no median is a training.
    batch = loss["global_batch_tokens"]
    loss = loss[batch == loss.groupby("arm")["global_batch_tokens"].transform("max")]
    over_bytes, over_time = _over_bytes(results, loss), _over_time(results, loss)
    shown: list[tuple[pd.DataFrame, dict[str, str]]] = [(loss, {})]
    remark = ""
    if not over_bytes.empty:
        # Cells that send less take other steps: what a byte buys is what they are compared by.
        shown.append((over_bytes, {"xscale": "log", "xlabel": "Sent so far [MB]"}))
        nodes = plural(int(over_bytes["nodes"].iloc[0]), "node")
        remark = (
            f"Steps differ by intent. Sent: by the rank that sends most, on {nodes}, counted in "
            "the profiled runs. "
        )
    if not over_time.empty:
        shown.append((over_time, {"xlabel": "Training [s]"}))
        where = place_name(results.last_place)
        remark += (
            f"Loss against time is estimated: means of {LOSS_STEPS} steps of the runs to the end, "
            f"at the median step time of each cell of their batch and precision at {where}. "
        )
        at_end = []
        for length, ends in deviation.groupby(deviation.groupby("run_id")["step"].transform("max")):
            apart = float(ends.loc[ends["step"] == length, "value"].max())
            at_end.append(f"{scientific(apart)} at step {int(length) + 1}")
        if at_end:
            remark += f"Largest deviation where runs end: {listed(at_end)}. "
    if end := end_of_training(results):
        remark += f"{end} "
    texts = results.pick("cell", "parity_loss_early")["text"].dropna()
    tolerances = sorted({float(text) for text in texts})
    top = 4 * max([deviation["value"].clip(upper=_LARGEST).max(), *tolerances])
    figure, axes_of = panels.grid(len(shown) + (not deviation.empty), 1.85)
    for axes, (steps, looks) in zip(axes_of, shown, strict=False):
        _curves(axes, steps, results, "median")
        low, high = axes.get_ylim()
        aside = max(_LEAST_NATS - (high - low), 0.0) / 2
        axes.set(ylabel="Loss [nats/token]", ylim=(low - aside, high + aside), **looks)
    if not deviation.empty:
        axes = axes_of[-1]
        # Exact agreement has no place on a logarithmic axis, so it is drawn at its lower end.
        clipped = deviation["value"].clip(_SMALLEST, _LARGEST)
        _curves(axes, deviation.assign(value=clipped), results, "max")
        for tolerance in tolerances:
            axes.axhline(tolerance, color=theme.GREY, lw=0.9, ls=(0, (6, 3)), zorder=1)
            axes.annotate(
                limit(tolerance), (0, tolerance), (3, 1.5), ("axes fraction", "data"),
                "offset points", fontsize=theme.LEAST_POINTS, color="#555555",
            )  # fmt: skip
        axes.set(yscale="log", ylim=(_SMALLEST / 2, top), ylabel="Relative deviation")
        axes.yaxis.set_major_locator(LogLocator(numticks=5))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: limit(value)))
        least = limit(_SMALLEST)
        remark += f"Deviations below {least}, exact agreement among them, are drawn there."
    return theme.finish(figure, results, loss, remark)


def _over_bytes(results: Results, loss: pd.DataFrame) -> pd.DataFrame:
    """Losses with the megabytes sent so far as their `step`, on the most nodes.

    Empty where all cells take the same step, or where nothing was counted.
    """
    sent = results.most_sent()
    if "schedule" not in results.declared or sent.empty:
        return loss.iloc[:0]
    here = loss[loss["nodes"] == sent["nodes"].max()]
    most = sent[sent["nodes"] == sent["nodes"].max()].groupby("cell")["value"].max()
    each = here["cell"].map(most)
    so_far: pd.DataFrame = here.assign(step=1e-6 * each * (here["step"] + 1))[each > 0]
    return so_far


def _over_time(results: Results, loss: pd.DataFrame) -> pd.DataFrame:
    """Losses of the longest runs with the seconds until then as their `step`, at the last place.

    A row for each cell and step: the median over the longest runs of its batch and precision, which
    take its steps, as a mean of `LOSS_STEPS`; the time by the cell's median step. Empty where all
    runs have as many steps.
    """
    last = loss.groupby("run_id")["step"].transform("max")
    times = results.pick("cell", "step_seconds")
    here = times["cell"].isin(results.last_place["cell"]) & (times["nodes"] == times["nodes"].max())
    longest, curves = loss[last == last.max()], list[pd.DataFrame]()
    for row in records(times[here].drop_duplicates("arm")) if last.nunique() > 1 else ():
        alike = (longest[list(_ALIKE)] == [row[name] for name in _ALIKE]).all(axis=1)
        whole = longest[alike].groupby("step", as_index=False)["value"].median()
        mean = whole["value"].rolling(LOSS_STEPS, min_periods=1).mean()
        seconds = row["value"] * (whole["step"] + 1)
        curves.append(whole.assign(value=mean, step=seconds, arm=row["arm"]))
    return pd.concat(curves) if curves else loss.iloc[:0]


def _curves(axes: Axes, steps: pd.DataFrame, results: Results, estimator: str) -> None:
    sns.lineplot(
        steps, x="step", y="value", estimator=estimator, errorbar=None, ax=axes, legend=False,
        markersize=4.5, markeredgewidth=0.4, linewidth=1.2, **theme.semantics(results),
    )  # fmt: skip
    # Equal work makes equal curves: staggered along the line, each arm still shows its markers.
    drawn = [line for line in axes.lines if np.size(line.get_xdata())]
    for place, line in enumerate(drawn):
        size = np.size(line.get_xdata())
        every = max(size // 6, len(drawn))
        line.set_markevery((place * every // len(drawn) % size, every))
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    axes.set_xlabel("Optimiser step")
