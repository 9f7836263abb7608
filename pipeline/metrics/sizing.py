"""How many repeats would make the speedups of a study as exact as wanted? Rows of level `study`.

The answer is a simulation from the spread between the runs that were made. For each number of
repeats, runs of the two cells of every speedup are drawn with the standard deviations of their
logarithms, and the interval of the ratio is made as it is made of real runs. A few repeats have
intervals of very different widths: where half of the intervals would be narrow enough, the other
half would not, so the share of narrow ones is asked and not their typical width. More steps in a
run do not make them narrower where, as is usual here, whole runs differ from one another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pipeline.metrics.cells import Group, Groups, find_base
from pipeline.metrics.statistics import (
    MIN_REPEATS,
    Interval,
    interval_of_ratio,
    values_interval,
)
from pipeline.metrics.table import row

WITHIN, SHARE = 0.05, 0.9
"""Wanted: the intervals of this share of the speedups lie within this share of their values."""

MOST = 10_000
"""The largest number of repeats that is tried."""

_DRAWS, _SEED = 400, 20220613
"""Intervals that are drawn for each number of repeats, over all speedups."""


def sizing_rows(groups: Groups) -> list[dict[str, Any]]:
    """How many speedups are so exact now, and with how many repeats 9 of 10 would be.

    No rows where no cell and its base have two runs each.
    """
    pairs = [(group, find_base(group, groups)) for group in groups.values() if len(group.ok) > 1]
    known = [
        (g, base) for g, base in pairs if base is not None and base is not g and len(base.ok) > 1
    ]
    if not known:
        return []
    exact = sum(half_width(interval_of_ratio(g.rate, base.rate)) <= WITHIN for g, base in known)
    number = repeats_for([(spread(group), spread(base)) for group, base in known])
    n, wanted = len(known), f"with an interval within {100 * WITHIN:g} % of its value"
    most = (
        f"repeats that would give {100 * SHARE:g} % of the speedups one {wanted}, by the spread "
        "between the runs made"
    )
    return [
        row("exact_speedups", "count", float(exact), n=n, text=f"speedups {wanted}"),
        row("repeats_for_speedups", "count", float(number), n=n, text=most),
    ]


def spread(group: Group) -> float:
    """Standard deviation between the finished runs of a cell, of the logarithm of their rates."""
    return float(np.std(np.log(group.run_rates), ddof=1))


def half_width(ratio: Interval) -> float:
    """The farther bound of an interval, as a share of its value."""
    return max(ratio.high / ratio.value - 1, 1 - ratio.low / ratio.value)


def repeats_for(spreads: Sequence[tuple[float, float]]) -> int:
    """Fewest repeats with which `SHARE` of the ratios of two cells lie within `WITHIN`.

    `spreads` has the standard deviations of both cells of each ratio.
    """
    count = MIN_REPEATS
    while count < MOST and (share := narrow_share(spreads, count)) < SHARE:
        # By steps of a twentieth, or of a half where hardly any is narrow.
        count += max(1, count // (20 if share > 0.1 else 2))
    return min(count, MOST)


def narrow_share(spreads: Sequence[tuple[float, float]], count: int) -> float:
    """Share of the ratios that lie within `WITHIN` where each cell has `count` runs, as drawn."""
    random = np.random.default_rng(_SEED)
    # All ratios as often as each other, and each at least once.
    drawn = [*spreads] * max(1, round(_DRAWS / len(spreads)))
    narrow = 0
    for one, other in drawn:
        sides = [
            values_interval(np.exp(s * random.standard_normal(count)).tolist())
            for s in (one, other)
        ]
        narrow += half_width(interval_of_ratio(*sides)) <= WITHIN
    return narrow / len(drawn)
