"""Ratios measured here beside those published; `python -m pipeline figure published`."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from pipeline.claims.write import NO_RATIO, counted, has_interval, outcome
from pipeline.figures import panels, theme
from pipeline.metrics.format import significant, with_interval
from pipeline.metrics.select import plural

CAPTION = (
    "Effects measured here, with their intervals, beside what was published; under six runs there "
    "is a point and no interval. Every effect is a ratio, so that a small study on a processor and "
    "a large one on GPUs can share the axis; no absolute time does. The grey band is what the "
    "claim says; the published point is the effect by the authors' own figures, where they give "
    "it. Claims that were not tested stand in the table of claims alone."
)
# The claims check equal work for themselves, each over its own cells.
COMPARES = {"global_batch", "schedule", "updates_per_step", "precision", "data", "model"}
NEEDS = "verdicts"

# As on the page; colour and word go together, so that the figure can be read in grey.
_COLOURS = {"reproduced": "#0b6b3a", "not reproduced": "#a8321a", "undecided": "#6a5200",
            "not testable here": "#565d66"}  # fmt: skip
_BAND = "#DADADA"
# How a sentence is read, and its figures: these stand in the table of claims.
_BRACKETS = re.compile(r"\s*\([^()]*\)")


def draw(table: pd.DataFrame, verdicts: Sequence[dict[str, Any]]) -> Figure:
    """One row for each claim whose effect is a ratio that was measured."""
    shown = [one for one in verdicts if one["kind"] not in NO_RATIO and one["effect"]]
    if not shown:
        return theme.nothing(table, "no claim with a ratio was tested")
    values = [1.0, *(one["published"]["value"] for one in shown if one["published"])]
    for one in shown:
        keys = ("value", "low", "high") if has_interval(one) else ("value",)
        values += [one["effect"][key] for key in keys]
    values = [value for value in values if value > 0]
    figure, [axes] = panels.grid(1, 0.75 + 0.38 * len(shown))
    panels.rows_axis(axes, [textwrap.fill(_BRACKETS.sub("", o["sentence"]), 44) for o in shown])
    axes.tick_params(axis="y", labelsize=theme.LEAST_POINTS)
    panels.log_axis(axes.xaxis, left := min(values) / 1.25, right := max(values) * 1.25)
    axes.set_xlabel("Ratio")
    axes.axvline(1.0, color=theme.GREY, lw=0.8, zorder=1)
    for row, one in enumerate(shown):
        claimed, effect, published = one["claimed"], one["effect"], one["published"]
        low = left if claimed["low"] is None else max(claimed["low"], left)
        high = right if claimed["high"] is None else min(claimed["high"], right)
        if low < high:
            axes.fill_betweenx([row - 0.36, row + 0.36], low, high, color=_BAND, lw=0, zorder=0)
        look = theme.Style(_COLOURS[outcome(one)], "o", "")
        # Side by side where a row has both, so that neither hides the other.
        apart = 0.17 if published else 0.0
        nan = float("nan")
        bounds = (max(effect["low"], left), effect["high"]) if has_interval(one) else (nan, nan)
        panels.mark(axes, effect["value"], row - apart, bounds, look, _words(one))
        if published:
            axes.plot(published["value"], row + apart, mec="black", zorder=7, **theme.PUBLISHED)
        axes.text(1.01, row, outcome(one), color=look.colour, fontsize=theme.LEAST_POINTS,
                  va="center", ha="left", transform=axes.get_yaxis_transform())  # fmt: skip
    entries = [
        Line2D([], [], label="measured here, with its interval", color="black", marker="o", ls=""),
        Line2D([], [], label="published", mec="black", **theme.PUBLISHED),
        Patch(color=_BAND, label="what the claim says"),
    ]
    remark = f"Right: the verdict. All of the study's {counted(verdicts)}."
    return theme.finish(figure, table, (), remark, extra=entries)


def _words(one: dict[str, Any]) -> str:
    """Measured effect with its runs (from six on its interval) and what was published."""
    effect, published = one["effect"], one["published"]
    measured = significant(effect["value"])
    if has_interval(one):
        measured = with_interval(effect["value"], effect["low"], effect["high"])
    parts = [outcome(one), f"measured {measured} in {plural(len(one['runs']), 'run')}"]
    if published:
        parts.append(f"published {significant(published['value'])}")
    return f"{_BRACKETS.sub('', one['sentence'])} {'; '.join(parts)}"
