"""Rank tests with effect sizes, Holm's correction, and drift along a series.

Hoefler & Belli (SC15, rule 7): measurements are compared by a test that asks for no distribution.
Two groups are compared by the exact rank-sum test (Wilcoxon, Mann & Whitney), since the chi-squared
approximation of Kruskal-Wallis promises too much for few values (4 against 4: 0.021 for 0.029).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.metrics.statistics import Floats

ALPHA = 0.05
# A series drifts when its last third differs from its first by more than this share of it, and
# the rank test finds that less likely than this by chance.
DRIFT_SHARE, DRIFT_ALPHA = 0.05, 0.01
DRIFT, STEADY, NOT_TESTED = "drift", "none", "not tested: too short a series"
RANK_SUM = "exact rank-sum test (Wilcoxon, Mann & Whitney)"
"""Name of the test between two groups, wherever its p-value is shown."""


@dataclass(frozen=True)
class RankTest:
    """Rank-sum test of two groups: its p-value, effect size and number of values.

    `effect_size` is epsilon squared, H / (n - 1) of Kruskal and Wallis: 0 for groups that mix
    freely, largest for groups that do not overlap (Tomczak & Tomczak 2014).
    """

    p_value: float
    effect_size: float
    n: int


def rank_sum(one: Floats, other: Floats) -> RankTest:
    """Test of two samples being alike, exact where one is small; p is 1 where all are one value."""
    from scipy.stats import kruskal, mannwhitneyu

    values = np.concatenate([one, other])
    if (values == values[0]).all():
        return RankTest(1.0, 0.0, len(values))
    exact = mannwhitneyu(one, other, alternative="two-sided").pvalue
    # With ties scipy turns to an approximation, which can fall below what is possible.
    p_value = max(exact, smallest_p_value(len(one), len(other)))
    effect_size = kruskal(one, other).statistic / (len(values) - 1)
    return RankTest(float(p_value), float(effect_size), len(values))


def p_value_above(one: Floats, other: Floats) -> float:
    """One-sided p-value of values of `one` being larger than those of `other`.

    `other` of one element is a bound instead of a sample: the sign test of the median of `one`.
    """
    from scipy.stats import binomtest, mannwhitneyu

    if len(other) == 1:
        above = int((one > other[0]).sum())
        return float(binomtest(above, len(one), 0.5, alternative="greater").pvalue)
    exact = mannwhitneyu(one, other, alternative="greater").pvalue
    return float(max(exact, smallest_p_value(len(one), len(other)) / 2))


def largest_effect_size(n: int, other: int) -> float:
    """Epsilon squared of two groups that do not overlap at all: nothing larger is possible."""
    total = n + other
    # Their mean ranks are half the size of the other group off the middle: H = 3 n m / (N + 1).
    return 3 * n * other / (total**2 - 1)


def smallest_p_value(n: int, other: int) -> float:
    """The p-value of two groups that do not overlap at all: nothing smaller is possible."""
    # Of all ways to choose the ranks of one group, two are without overlap: below and above.
    return min(1.0, 2 / math.comb(n + other, n))


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values corrected for their number: any false alarm among them stays rare (Holm 1979)."""
    adjusted, largest = [0.0] * len(p_values), 0.0
    # The smallest counts for all tests, the next for one less; none falls below one before it.
    for place, index in enumerate(np.argsort(p_values, kind="stable")):
        largest = max(largest, min(1.0, (len(p_values) - place) * p_values[index]))
        adjusted[index] = largest
    return adjusted


@dataclass(frozen=True)
class Drift:
    """Change from the first to the last third of a series, as a share of the first."""

    share: float
    p_value: float
    n: int

    @property
    def verdict(self) -> str:
        """`DRIFT` where it is both larger than `DRIFT_SHARE` and unlikely to be chance."""
        large = abs(self.share) > DRIFT_SHARE
        return DRIFT if large and self.p_value < DRIFT_ALPHA else STEADY


def drift(series: Floats) -> Drift | None:
    """Drift along `series`, in its order; None where a third is too short to be tested.

    Neighbouring steps resemble each other, which makes the p-value too small; the threshold on
    the size of the change is what keeps small waves out.
    """
    third = len(series) // 3
    # Two thirds that could not differ significantly even without overlap say nothing.
    if third == 0 or smallest_p_value(third, third) >= DRIFT_ALPHA:
        return None
    first, last = series[:third], series[-third:]
    share = float(np.median(last) / np.median(first)) - 1.0
    return Drift(share, rank_sum(first, last).p_value, third)
