"""Intervals and tests without a model of the noise, after Hoefler & Belli (SC15, section 3).

Step times are neither normal nor independent of the run they belong to. Within a run the median
gets an interval from order statistics. Across runs each run counts once, by its median, because
steps of one run share what made that run fast or slow; the interval of the median of these comes
from interpolated order statistics (Hettmansperger & Sheather 1986), and a ratio of two such medians
gets its interval from the two intervals (Zou & Donner 2008).

A bootstrap would be the usual choice, but that of a median of few values is too narrow
(docs/lab-notes.md); tests/unit/metrics/test_statistics.py measures what these intervals cover.

Measurements are compared by a test that asks for no distribution (rule 7): two groups by the exact
rank-sum test (Wilcoxon, Mann & Whitney), since the chi-squared approximation of Kruskal-Wallis
promises too much for few values (4 against 4: 0.021 for 0.029).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

CONFIDENCE = 0.95
# Fewest repeats whose extremes cover their median with 95 %: 1 - 2 x 0.5^6 = 96.9 %.
MIN_REPEATS = 6
_PERCENT = f"{100 * CONFIDENCE:g} %"
NO_INTERVAL = f"no interval: under {MIN_REPEATS} runs"
NO_RATIO = f"no interval: one of the two has under {MIN_REPEATS} runs"

ALPHA = 0.05
# A series drifts when its last third differs from its first by more than this share of it, and
# the rank test finds that less likely than this by chance.
DRIFT_SHARE, DRIFT_ALPHA = 0.05, 0.01
DRIFT, STEADY, NOT_TESTED = "drift", "no drift", "not tested: too short a series"

COUNTED = "counted, the same in every step and run"
"""Origin of a value without noise, such as bytes: one run has it exactly."""


@dataclass(frozen=True)
class Interval:
    """A value, its bounds (in the unit of the value) and one line on how they were made."""

    value: float
    low: float
    high: float
    n: int
    how: str

    def rate(self, work: float) -> Interval:
        """`work` over this time: the bounds change places."""
        return replace(self, value=work / self.value, low=work / self.high, high=work / self.low)

    def times(self, factor: float) -> Interval:
        """This value and its bounds times a positive factor."""
        value, low, high = factor * self.value, factor * self.low, factor * self.high
        return replace(self, value=value, low=low, high=high)


def median_interval(values: Floats) -> Interval:
    """Median of `values` with a distribution-free interval from order statistics.

    The ranks are the narrowest symmetric pair whose binomial coverage is at least `CONFIDENCE`.
    With too few values for that, the bounds are the extremes; `how` says what they cover.
    """
    ordered, n = np.sort(np.asarray(values, dtype=np.float64)), len(values)
    depth, coverage, _ = _coverages(n)
    how = f"order statistics of {n} steps, {100 * coverage:.1f} % coverage"
    low, high = float(ordered[depth - 1]), float(ordered[n - depth])
    return Interval(float(np.median(ordered)), low, high, n, how)


def interpolated_bounds(values: Floats) -> tuple[float, float]:
    """Bounds of the median at `CONFIDENCE`, between two order statistics on either side.

    The intervals at depths d and d + 1 cover a little more and a little less than `CONFIDENCE`;
    the weight of the inner one is (n - d) I / (d + (n - 2d) I), with I = (outer - CONFIDENCE) /
    (outer - inner) (Hettmansperger & Sheather 1986). Where even the extremes cover less, they are
    taken.
    """
    ordered, n = np.sort(np.asarray(values, dtype=np.float64)), len(values)
    depth, outer, inner = _coverages(n)
    share = max(0.0, (outer - CONFIDENCE) / (outer - inner))
    weight = (n - depth) * share / (depth + (n - 2 * depth) * share)
    low = ordered[depth - 1] + weight * (ordered[depth] - ordered[depth - 1])
    high = ordered[n - depth] - weight * (ordered[n - depth] - ordered[n - depth - 1])
    return float(low), float(high)


MOST_EXACT = 2000
"""Most values that are counted exactly: that takes 10 ms, and four times as long for twice."""


@cache
def _coverages(n: int) -> tuple[int, float, float]:
    """Depth of the innermost order statistics of `n` values that cover `CONFIDENCE`, else 1.

    With it comes what they and the next inner ones cover.
    """
    if not n:
        raise ValueError("an interval of no values; filter out empty runs before")
    # Each value is below the true median with probability 1/2, whatever their distribution: so
    # exactly how often n throws of a fair coin give at most so many heads. `scipy.stats` says the
    # same, but its import takes as long as all intervals of a study of few steps.
    if n > MOST_EXACT:
        from scipy.stats import binom

        depth = max(1, int(binom.ppf((1 - CONFIDENCE) / 2, n, 0.5)))
        outer, inner = (1.0 - 2.0 * float(binom.cdf(d - 1, n, 0.5)) for d in (depth, depth + 1))
        return depth, outer, inner
    ways = accumulate(range(n), lambda many, k: many * (n - k) // (k + 1), initial=1)
    most = [total / 2**n for total in accumulate(ways)]
    # The interval at depth d misses the median where under d of the values are on one side of it.
    depth = next(k for k in range(1, n + 1) if most[k] >= (1 - CONFIDENCE) / 2)
    return depth, 1.0 - 2.0 * most[depth - 1], 1.0 - 2.0 * most[depth]


def repeats_interval(runs: Sequence[Floats]) -> Interval:
    """Median of the run medians, with an interval over the repeats; `runs` holds their steps.

    Under `MIN_REPEATS` the bounds are the smallest and largest repeat, of one run those of its
    steps. They are no interval: claims and comparisons do not decide by them, and the table of
    metrics leaves them out.
    """
    if len(runs) == 1:
        return replace(median_interval(runs[0]), n=1, how=NO_INTERVAL)
    return values_interval([float(np.median(run)) for run in runs])


def values_interval(values: Sequence[float]) -> Interval:
    """Median of one value per repeat, such as a peak of memory; interval as `repeats_interval`."""
    n = len(values)
    if n == 0:
        raise ValueError("values_interval of no values; filter out empty cells before")
    value = float(np.median(values))
    low, high = interpolated_bounds(np.asarray(values)) if n > 1 else (value, value)
    how = f"{_PERCENT} interval from order statistics of {n} repeats"
    # Rounding of the interpolation may bring a bound past the median.
    bounds = min(low, value), max(high, value)
    return Interval(value, *bounds, n, how if n >= MIN_REPEATS else NO_INTERVAL)


def log_slope(sizes: Sequence[float], values: Sequence[float]) -> float:
    """The exponent to which values grow with sizes, by least squares of their logarithms."""
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def interval_of_ratio(one: Interval, other: Interval) -> Interval:
    """`one` over `other`, positive and of independent runs, by MOVER (Zou & Donner 2008)."""
    # Distances of the bounds from the value, on the logarithm: a ratio is a difference there.
    first, second = (
        (math.log(part.value / part.low), math.log(part.high / part.value)) for part in (one, other)
    )
    # Two intervals of few values are each as wide as the t distribution of its own degrees of
    # freedom asks; their sum has more (Welch & Satterthwaite), so each is scaled to those. Without
    # this, 6 against 6 cover 98 %.
    scale = [1.0, 1.0]
    if min(one.n, other.n) >= MIN_REPEATS:
        from scipy.special import stdtrit

        tail, freedom = (1 + CONFIDENCE) / 2, [one.n - 1, other.n - 1]
        alone = [float(stdtrit(df, tail)) for df in freedom]
        # A half-width is the quantile times the standard error: squared, it gives the variance.
        variance = [(sum(own) / 2 / q) ** 2 for own, q in zip((first, second), alone, strict=True)]
        if (total := sum(variance)) > 0:
            parts = sum(v**2 / df for v, df in zip(variance, freedom, strict=True))
            both = float(stdtrit(total**2 / parts, tail))
            scale = [both / q for q in alone]
    # The root of the summed squares of the two bounds that push a bound of the ratio there.
    down = math.hypot(first[0] * scale[0], second[1] * scale[1])
    up = math.hypot(first[1] * scale[0], second[0] * scale[1])
    value, n = one.value / other.value, min(one.n, other.n)
    how = f"{_PERCENT} interval of a ratio of medians of {one.n} and {other.n} repeats"
    bounds = value * math.exp(-down), value * math.exp(up)
    return Interval(value, *bounds, n, how if n >= MIN_REPEATS else NO_RATIO)


def rank_sum(one: Floats, other: Floats) -> tuple[float, float]:
    """p-value and effect size of two samples being alike; exact without ties.

    The effect size is epsilon squared, H / (n - 1) of Kruskal and Wallis: 0 for groups that mix
    freely, largest for groups that do not overlap (Tomczak & Tomczak 2014).
    """
    from scipy.stats import kruskal

    values = np.concatenate([one, other])
    if (values == values[0]).all():
        return 1.0, 0.0
    p_value = max(_rank_test(one, other, "two-sided"), smallest_p_value(len(one), len(other)))
    return p_value, float(kruskal(one, other).statistic / (len(values) - 1))


def _rank_test(one: Floats, other: Floats, alternative: Literal["two-sided", "greater"]) -> float:
    """p-value of Mann and Whitney: with ties by an approximation, which may be impossibly small."""
    from scipy.stats import mannwhitneyu

    values = np.concatenate([one, other])
    exact = len(np.unique(values)) == len(values)
    test = mannwhitneyu(one, other, alternative=alternative,
                        method="exact" if exact else "asymptotic")  # fmt: skip
    return float(test.pvalue)


def p_value_above(one: Floats, other: Floats) -> float:
    """One-sided p-value of values of `one` being larger than those of `other`.

    `other` of one element is a bound instead of a sample: the sign test of the median of `one`.
    """
    from scipy.stats import binomtest

    if len(other) == 1:
        above = int((one > other[0]).sum())
        return float(binomtest(above, len(one), 0.5, alternative="greater").pvalue)
    return max(_rank_test(one, other, "greater"), smallest_p_value(len(one), len(other)) / 2)


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


def drift(series: Floats) -> tuple[float, str, int] | None:
    """Drift along `series`, in its order; None where a third is too short to be tested.

    It is the change from the first to the last third as a share of the first, a verdict, and the
    number of values of a third. The verdict is `DRIFT` where the change is both larger than
    `DRIFT_SHARE` and unlikely to be chance. Neighbouring steps resemble each other, which makes the
    p-value too small; the threshold on the size of the change is what keeps small waves out.
    """
    third = len(series) // 3
    # Two thirds that could not differ significantly even without overlap say nothing.
    if third == 0 or smallest_p_value(third, third) >= DRIFT_ALPHA:
        return None
    first, last = series[:third], series[-third:]
    share = float(np.median(last) / np.median(first)) - 1.0
    p_value, _ = rank_sum(first, last)
    is_drift = abs(share) > DRIFT_SHARE and p_value < DRIFT_ALPHA
    return share, DRIFT if is_drift else STEADY, third
