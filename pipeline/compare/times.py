"""Step times of two result sets: simultaneous intervals of all cells against a margin.

Each run counts once, by the median of its timed steps. The ratio of a cell is that of the geometric
means over its runs, with Welch's t interval on the logarithms. All cells' intervals hold together
with `CONFIDENCE` (Bonferroni), so a rerun of m cells is not called different because one of m
intervals fails by chance. A cell is the same only where its interval lies inside the margin, and
different only where it lies outside (two one-sided tests, Schuirmann 1987); else it is undecided.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from pipeline.metrics.runs import Run
from pipeline.metrics.statistics import CONFIDENCE, Interval

SAME, DIFFERENT, UNDECIDED = "same", "different", "undecided"
MARGIN = 0.05
"""Relative: times this close are called the same."""

Key = TypeVar("Key")


@dataclass(frozen=True)
class Times:
    """Step times of a cell: medians over each set's runs in seconds, and the second over the first.

    `ratio` is None where a set has one run, which says nothing about other runs.
    """

    one: float
    other: float
    ratio: Interval | None
    verdict: str


_Contrast = tuple[float, list[tuple[float, int]]]
"""Difference of two means of logarithms, and the variance and freedom of each mean."""


def cell_times(pairs: Mapping[Key, tuple[Sequence[Run], Sequence[Run]]]) -> dict[Key, Times]:
    """The times of every cell whose two sides have a finished run; intervals hold together."""
    contrasts = {key: _contrast(*sides) for key, sides in pairs.items() if all(sides)}
    count = sum(contrast is not None for contrast in contrasts.values())
    how = f"{100 * CONFIDENCE:g} % together over {count} cells, by Welch's t on logarithms"
    times = {}
    for key, contrast in contrasts.items():
        one, other = pairs[key]
        ratio = None
        steps = [[run.timed_seconds.tolist() for run in side] for side in (one, other)]
        # The same records on both sides, which have no interval to hold against a margin.
        if steps[0] == steps[1]:
            exact = "exact: every step took the same time in both"
            ratio = Interval(1.0, 1.0, 1.0, len(one), exact)
        elif contrast is not None:
            ratio = _interval([contrast], count, min(len(one), len(other)), how)
        medians = [[np.median(run.timed_seconds) for run in side] for side in (one, other)]
        a, b = (float(np.median(side)) for side in medians)
        times[key] = Times(a, b, ratio, verdict(ratio))
    return times


def pooled(cells: Iterable[tuple[Sequence[Run], Sequence[Run]]]) -> Interval | None:
    """Geometric mean of the cells' ratios, each cell once, with its own interval; None without."""
    contrasts = [_contrast(*sides) for sides in cells]
    known = [contrast for contrast in contrasts if contrast is not None]
    how = f"{100 * CONFIDENCE:g} % for the geometric mean of {len(known)} cells"
    return _interval(known, 1, len(known), how) if known else None


def verdict(ratio: Interval | None) -> str:
    """Verdict on an interval: inside the margin, outside, or neither."""
    if ratio is None:
        return UNDECIDED
    least, most = 1 / (1 + MARGIN), 1 + MARGIN
    if ratio.low >= least and ratio.high <= most:
        return SAME
    return DIFFERENT if ratio.low > most or ratio.high < least else UNDECIDED


def _contrast(one: Sequence[Run], other: Sequence[Run]) -> _Contrast | None:
    """None where a side has fewer than two runs."""
    if min(len(one), len(other)) < 2:
        return None
    sides = [np.log([np.median(run.timed_seconds) for run in side]) for side in (one, other)]
    parts = [(float(np.var(side, ddof=1)) / len(side), len(side) - 1) for side in sides]
    return float(np.mean(sides[1]) - np.mean(sides[0])), parts


def _interval(contrasts: Sequence[_Contrast], num_intervals: int, n: int, how: str) -> Interval:
    """Mean of the contrasts as a ratio; `num_intervals` such intervals hold together."""
    from scipy.special import stdtrit

    count = len(contrasts)
    parts = [(variance / count**2, freedom) for _, own in contrasts for variance, freedom in own]
    total = sum(variance for variance, _ in parts)
    middle = sum(difference for difference, _ in contrasts) / count
    reach = 0.0
    if total > 0:
        # Degrees of freedom of a sum of variances (Welch & Satterthwaite).
        combined = total**2 / sum(variance**2 / freedom for variance, freedom in parts)
        # Both ends of all intervals share what is left of the confidence (Bonferroni).
        tail = 1 - (1 - CONFIDENCE) / (2 * num_intervals)
        reach = float(stdtrit(combined, tail)) * math.sqrt(total)
    low, high = math.exp(middle - reach), math.exp(middle + reach)
    return Interval(math.exp(middle), low, high, n, how)
