"""How many repeats would make the speedups of a study as exact as wanted? Rows of level `study`.

The answer is arithmetic on the spread between the runs that were made: the half width of the
interval of a ratio of two medians of R runs is about t sqrt(pi/2 (s1^2 + s2^2) / R) on the
logarithm, where s1 and s2 are the standard deviations between the runs of the two cells and t the
97.5 % quantile of Student's distribution with 2R - 2 degrees of freedom. More steps in a run do not
make it narrower where, as is usual here, whole runs differ from one another.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from pipeline.metrics.cells import Group, Groups, find_base
from pipeline.metrics.statistics import CONFIDENCE, MIN_REPEATS, interval_of_ratio

WITHIN, SHARE = 0.05, 0.9
"""Wanted: the intervals of this share of the speedups lie within this share of their values."""

MOST = 10_000
"""Repeats beyond which nobody looks."""


def sizing_rows(groups: Groups) -> list[dict[str, Any]]:
    """How many speedups are so exact now, and with how many repeats 9 of 10 would be.

    No rows where no cell and its base have two runs each.
    """
    pairs = [(group, find_base(group, groups)) for group in groups.values() if len(group.ok) > 1]
    known = [(g, base) for g, base in pairs if base is not None and base is not g]
    known = [(group, base) for group, base in known if len(base.ok) > 1]
    if not known:
        return []
    needed = sorted(repeats_for(spread(group), spread(base)) for group, base in known)
    exact = sum(half_width(group, base) <= WITHIN for group, base in known)
    number = needed[math.ceil(SHARE * len(needed)) - 1]
    shared = {"level": "study", "unit": "count", "n": len(known)}
    wanted = f"with an interval within {100 * WITHIN:g} % of its value"
    return [
        {**shared, "metric": "exact_speedups", "value": float(exact), "text": f"speedups {wanted}"},
        {**shared, "metric": "repeats_for_speedups", "value": float(number),
         "text": f"repeats that would give {100 * SHARE:g} % of the speedups one {wanted}, by the "
         "spread between the runs made"},
    ]  # fmt: skip


def spread(group: Group) -> float:
    """Standard deviation between the finished runs of a cell, of the logarithm of their rates."""
    return float(np.std(np.log(group.run_rates), ddof=1))


def half_width(group: Group, base: Group) -> float:
    """The farther bound of the speedup's interval, as a share of its value."""
    ratio = interval_of_ratio(group.rate, base.rate)
    return max(ratio.high / ratio.value - 1, 1 - ratio.low / ratio.value)


def repeats_for(one: float, other: float) -> int:
    """Fewest repeats of two cells of these spreads that bring their ratio within `WITHIN`."""
    from scipy.stats import t

    variance = math.pi / 2 * (one**2 + other**2)
    count = MIN_REPEATS
    while count < MOST:
        quantile = float(t.ppf((1 + CONFIDENCE) / 2, 2 * count - 2))
        if quantile * math.sqrt(variance / count) <= math.log1p(WITHIN):
            break
        # The quantile hardly falls: at most the share of the variance is missing.
        count = max(count + 1, min(MOST, int(variance * (1.96 / math.log1p(WITHIN)) ** 2)))
    return count
