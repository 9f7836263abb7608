"""Speedup against nodes; `python -m pipeline figure speedup`."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from pipeline.figures import ranked, scales, sheets, theme
from pipeline.figures.against_nodes import bars, draw_arms, ideal_lines, name_ends
from pipeline.metrics.select import (
    links,
    listed,
    over,
    over_link,
    pick,
    speedup_name,
)

CAPTION = (
    "Speedup: throughput over that of the base, with the interval of the ratio. The base is the "
    "single-device run of the same precision, or the cell's own run on one node where there is "
    "none; the line below the figure gives it in absolute terms and says what the intervals cover. "
    "Where the batch grows with the devices (weak scaling), the ratio is called scaled speedup. "
    "Against the number of nodes both axes are logarithmic, so equal distances are equal factors, "
    "and the dashed grey line is ideal speedup; between the points that a line joins nothing was "
    "measured."
)
COMPARES = {"precision"}
_POWERS = [2.0**power for power in range(-8, 12)]
_BETWEEN = [1.5 * power for power in _POWERS]
_ROOM = 8
"""Largest speedup over the smallest at which there is room for ticks between powers of two."""


def draw(table: pd.DataFrame) -> Figure:
    """Speedup of every cell at every node count, a panel for each link, with the ideal line."""
    values, ideals = pick(table, "cell", "speedup"), pick(table, "cell", "ideal_speedup")
    name = speedup_name(table)
    name = f"{name[0].upper()}{name[1:]} over the base"
    if ranked.fits(values):
        return ranked.draw(table, values, name, _remark(table, values))
    compared = links(table)
    figure, [panels] = sheets.grid(len(compared), 2.2, sharey=True)
    if values.empty:
        return theme.empty(figure, panels[0], table)
    shown: set[str] = set()
    entries: Sequence[Line2D] = []
    for link, axes in zip(compared, panels, strict=True):
        own = over_link(table, link)
        here = values[values["cell"].isin(own)]
        draw_arms(axes, here, table)
        shown |= set(here["cell"])
        entries = ideal_lines(axes, ideals[ideals["cell"].isin(own)])
        axes.axhline(1.0, color="#BBBBBB", lw=0.8, zorder=1)
        scales.name_panel(axes, over(link))
    first = panels[0]
    first.set_yscale("log", base=2)
    low, high = first.get_ylim()
    ticks = _POWERS if high / low > _ROOM else _POWERS + _BETWEEN
    first.yaxis.set_major_locator(FixedLocator(ticks))
    first.yaxis.set_minor_locator(NullLocator())
    first.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    for axes in sheets.leftmost(panels):
        axes.set_ylabel(name.replace(", under", ",\nunder"))
    for link, axes in zip(compared, panels, strict=True):
        name_ends(axes, values[values["cell"].isin(over_link(table, link))], table)
    what = _remark(table, values)
    return theme.finish(figure, table, shown, what, extra=entries, named=True)


def _remark(table: pd.DataFrame, values: pd.DataFrame) -> str:
    return f"Bases: {_bases(table)}. {bars(values)}"


def _bases(table: pd.DataFrame) -> str:
    """Each base with its absolute throughput, and for which cells it is one; its own is said."""
    rows = pick(table, "cell", "base_tokens_per_second")
    found = []
    for base, part in rows.groupby("base", sort=False):
        arms = list(dict.fromkeys(part["arm"]))
        own = str(base).split(", ")[0] in arms and len(arms) == 1
        whose = "itself, which has no single device of its precision" if own else listed(arms)
        found.append(f"{base} ({part['value'].iloc[0]:,.0f} tokens/s) for {whose}")
    return "; ".join(found)
