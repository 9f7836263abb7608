"""Ratios measured here beside those published; `python -m pipeline figure published`."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from pipeline.claims.write import counted, has_interval, outcome
from pipeline.figures import points, scales, sheets, theme
from pipeline.metrics.format import significant, with_interval
from pipeline.metrics.select import plural

CAPTION = (
    "Effects measured here, with their intervals, beside what was published; under six runs there "
    "is a point and no interval. Every effect is a "
    "ratio, so that a small study on a processor and a large one on GPUs can share the axis; no "
    "absolute time does. Claims that were tested come first. The grey band is what the claim says; "
    "the published point is the effect by the authors' own figures, where they give it."
)
# The claims check equal work for themselves, each over its own cells.
COMPARES = {"global_batch", "schedule", "updates_per_step", "precision", "data", "model"}
NEEDS = "verdicts"

# Effects that are no ratio of two measurements.
_NO_RATIO = ("utilisation", "fits", "absolute")
# Colour and word go together, so that the figure can be read in grey.
_COLOURS = {"reproduced": "#0072B2", "not reproduced": "#D55E00", "undecided": "#7A7A00",
            "not testable here": "#777777"}  # fmt: skip
_BAND = "#DADADA"
# Behind a sentence over the axis: neither the line at 1 nor one of the grid crosses it.
_CLEAR = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}
_LETTERS, _LETTERS_ABOVE = 44, 64
# How a sentence is read, and its figures: these stand in the table of claims.
_BRACKETS = re.compile(r"\s*\([^()]*\)")
_TICKS = [2.0**power for power in range(-6, 8)]


def draw(table: pd.DataFrame, verdicts: Sequence[dict[str, Any]]) -> Figure:
    """One line for each claim whose effect is a ratio and was measured or published."""
    shown = [
        one
        for one in verdicts
        if one["kind"] not in _NO_RATIO and (one["effect"] or one["published"])
    ]
    shown.sort(key=lambda one: one["effect"] is None)
    figure, [[axes]] = sheets.grid(
        1, 0.75 + (0.6 if sheets.current().narrow else 0.38) * max(len(shown), 4)
    )
    if not shown:
        axes.text(0.5, 0.5, "no claim has a ratio to show", ha="center", transform=axes.transAxes)
        return theme.finish(figure, table, (), "")
    _scale(axes, shown)
    for place, one in enumerate(shown):
        _row(axes, place, one)
    if sheets.current().narrow:
        axes.set_yticks([])
        for place, one in enumerate(shown):
            axes.text(
                0, place - 0.22, _words(one["sentence"]), fontsize=7, va="bottom", in_layout=False,
                transform=axes.get_yaxis_transform(), zorder=1.5, bbox=_CLEAR,
            )  # fmt: skip
    else:
        scales.cell_axis(axes, [_words(one["sentence"]) for one in shown])
    axes.tick_params(axis="y", labelsize=7)
    entries = [
        theme.provenance_entry(theme.MEASURED, "measured here, with its interval"),
        theme.provenance_entry(theme.PUBLISHED),
        Line2D([], [], color=_BAND, lw=8, label="what the claim says"),
    ]
    what = (
        "Right: the verdict; a line without a disc is not testable here. All of the study's "
        f"{counted(verdicts)}."
    )
    return theme.finish(figure, table, (), what, extra=entries)


def _words(sentence: str) -> str:
    """A sentence without what stands in brackets, whole, in short lines."""
    return textwrap.fill(
        _BRACKETS.sub("", sentence), _LETTERS_ABOVE if sheets.current().narrow else _LETTERS
    )


def _told(one: dict[str, Any]) -> str:
    """Measured effect with its runs (from six on its interval) and what was published."""
    effect, published = one["effect"], one["published"]
    said = [outcome(one)]
    if effect:
        measured = significant(effect["value"])
        if has_interval(one):
            measured = with_interval(effect["value"], effect["low"], effect["high"])
        said.append(f"measured {measured} in {plural(len(one['runs']), 'run')}")
    if published:
        said.append(f"published {significant(published['value'])}")
    return f"{_BRACKETS.sub('', one['sentence'])} {'; '.join(said)}"


def _scale(axes: Axes, shown: Sequence[dict[str, Any]]) -> None:
    """A logarithmic axis that holds all points and intervals, and 1."""
    values = [1.0]
    for one in shown:
        effect, published = one["effect"] or {}, one["published"] or {}
        ends = ("value", "low", "high") if has_interval(one) else ("value",)
        values += [effect[key] for key in ends if key in effect]
        values += [published["value"]] if published else []
    values = [value for value in values if value > 0]
    axes.set_xscale("log", base=2)
    axes.set_xlim(min(values) / 1.25, max(values) * 1.25)
    axes.set_ylim(len(shown) - 0.4, -0.9 if sheets.current().narrow else -0.6)
    axes.xaxis.set_major_locator(FixedLocator(_TICKS))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlabel("Ratio")
    axes.axvline(1.0, color="#888888", lw=0.8, zorder=1)
    axes.grid(False, axis="y")
    axes.grid(True, axis="x")


def _row(axes: Axes, place: int, one: dict[str, Any]) -> None:
    """Band, interval, points and verdict of one claim."""
    left, right = axes.get_xlim()
    claimed, effect = one["claimed"], one["effect"]
    low = left if claimed["low"] is None else max(claimed["low"], left)
    high = right if claimed["high"] is None else min(claimed["high"], right)
    if low < high:
        half = 0.2 if sheets.current().narrow else 0.36
        axes.fill_betweenx([place - half, place + half], low, high, color=_BAND, lw=0, zorder=0)
    word = outcome(one)
    colour = _COLOURS[word]
    # Side by side where a line has both, so that neither hides the other.
    apart = (0.1 if sheets.current().narrow else 0.17) if effect and one["published"] else 0.0
    if effect is not None and effect["value"] > 0:
        ends, y = [max(effect["low"], left), effect["high"]], place - apart
        if has_interval(one):
            axes.plot(ends, [y, y], color=colour, lw=1.4, marker="|", ms=6, zorder=6)
        axes.plot([effect["value"]], [y], **theme.provenance(theme.MEASURED, colour))
    if effect is not None or one["published"] is not None:
        at = effect or one["published"]
        axes.add_artist(points.Point(at["value"], place, _told(one)))
    if one["published"] is not None:
        axes.plot([one["published"]["value"]], [place + apart], **theme.provenance(theme.PUBLISHED))
    axes.text(
        1.01, place, word, color=colour, fontsize=7, va="center", ha="left",
        transform=axes.get_yaxis_transform(),
    )  # fmt: skip
