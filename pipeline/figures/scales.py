"""Axes that several figures have alike: scales, ticks, labels, titles of panels."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import FixedLocator, FuncFormatter, LogFormatterSciNotation, NullLocator

from pipeline.figures import sheets

_TITLE_WRAP = 92
_FIXED = "\N{NO-BREAK SPACE}"


def extent(values: pd.DataFrame) -> tuple[float, float]:
    """The smallest and the largest number of points and of the intervals that some have."""
    numbers = values[["value", "low", "high"]].to_numpy(dtype=float)
    return float(np.nanmin(numbers)), float(np.nanmax(numbers))


def node_axis(axes: Axes, nodes: Sequence[int]) -> None:
    """Base-2 logarithmic axis with a tick at each node count of the study."""
    axes.set_xscale("log", base=2)
    axes.set_xlim(nodes[0] / 1.35, nodes[-1] * 1.35)
    axes.xaxis.set_major_locator(FixedLocator(list(nodes)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlabel("Nodes")


def name_panel(axes: Axes, text: str, room: float = 1.0) -> None:
    """Title of a panel, on several lines where it is too long for one, at commas if possible.

    `room` is the share of its column that the panel has next to the names of its rows.
    """
    place = axes.get_subplotspec()
    assert place is not None
    columns = place.get_gridspec().ncols
    whole = text.replace(" ", _FIXED).replace(f",{_FIXED}", ", ")
    folded = textwrap.fill(
        whole,
        int(room * sheets.current().share(_TITLE_WRAP) / columns),
        break_long_words=False,
    )
    axes.set_title(folded.replace(_FIXED, " "))


def decade_axis(axes: Axes, low: float, high: float) -> None:
    """Logarithmic x axis around positive values, with two to four round ticks where it can."""
    powers = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
    least, most = low / 1.15, high * 1.15
    for digits in ((1, 2, 5), (1, 3), (1,)):
        steps = [digit * 10.0**power for power in powers for digit in digits]
        ticks = [step for step in steps if least <= step <= most]
        if len(ticks) <= 4:
            break
    if len(ticks) < 2:
        ticks = sorted({max(s for s in steps if s <= low), min(s for s in steps if s >= high)})
    axes.set_xscale("log")
    axes.set_xlim(min(least, ticks[0] / 1.05), max(most, ticks[-1] * 1.05))
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def rate_axis(axes: Axes, low: float, high: float) -> None:
    """Logarithmic y axis from `low` to `high`, both positive, with round ticks in plain digits."""
    powers = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
    for digits in ((1, 2, 3, 4, 5, 6, 8), (1, 2, 5), (1, 3), (1,)):
        ticks = [digit * 10.0**power for power in powers for digit in digits]
        ticks = [tick for tick in ticks if low <= tick <= high]
        if len(ticks) <= 7:
            break
    axes.set_yscale("log")
    axes.set_ylim(low, high)
    axes.yaxis.set_major_locator(FixedLocator(ticks))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))


class _PlainPowers(LogFormatterSciNotation):
    """Powers of ten in plain characters, as mathematics is not read in any text."""

    _RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")

    def __call__(self, x: float, pos: int | None = None) -> str:
        text = super().__call__(x, pos).replace(r"$\mathdefault{", "").replace("}$", "")
        text = text.replace(r"\times", "\N{MULTIPLICATION SIGN}")
        return re.sub(r"\^\{(.*?)\}", lambda found: found[1].translate(self._RAISED), text)


def plain_powers(axis: Axis) -> None:
    """Label a logarithmic axis with powers of ten; call it after the scale is set."""
    axis.set_major_formatter(_PlainPowers())
    axis.set_minor_formatter(_PlainPowers(labelOnlyBase=False))


def cell_axis(axes: Axes, names: Sequence[str]) -> None:
    """Vertical axis of one line a cell: its short names on the first panel, nothing on others."""
    axes.set_yticks(range(len(names)), names)
    axes.tick_params(axis="y", left=False)
    axes.set_ylabel("")
