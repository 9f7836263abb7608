"""Intervals without a model of the noise, after Hoefler & Belli (SC15, sections 3.1 and 3.2).

Step times are neither normal nor independent of the run they belong to. Within a run the median
gets an interval from order statistics; across runs it gets a two-level bootstrap, which resamples
repeats and then steps, because steps of one run share what made that run fast or slow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

CONFIDENCE = 0.95
NUM_RESAMPLES = 4000
_SEED = 20220613


@dataclass(frozen=True)
class Interval:
    """A value, its bounds (in the unit of the value) and one line on how they were made."""

    value: float
    low: float
    high: float
    n: int
    how: str


def median_interval(values: Floats, confidence: float = CONFIDENCE) -> Interval:
    """Median of `values` with a distribution-free interval from order statistics.

    The ranks are the widest pair whose binomial coverage is at least `confidence`. With too few
    values for that (under 6 at 95 %), the bounds are the extremes and `how` says what they cover.
    """
    from scipy.stats import binom

    ordered = np.sort(np.asarray(values, dtype=np.float64))
    n = len(ordered)
    if n == 0:
        raise ValueError("median_interval of no values; filter out empty runs before")
    below = int(binom.ppf((1 - confidence) / 2, n, 0.5))
    # ppf is the first k with cdf >= alpha/2, so the k-th order statistic is safe at k, not k + 1.
    low_index = max(below - 1, 0)
    coverage = 1.0 - 2.0 * float(binom.cdf(low_index, n, 0.5))
    how = f"order statistics of {n} steps, {100 * coverage:.1f} % coverage"
    return Interval(
        float(np.median(ordered)), float(ordered[low_index]), float(ordered[n - 1 - low_index]),
        n, how,
    )  # fmt: skip


def bootstrap_medians(runs: Sequence[Floats], key: Sequence[int]) -> Floats:
    """Resampled medians of run medians, shape (NUM_RESAMPLES,), in the unit of the values.

    Repeats are drawn with replacement, then the steps inside each. `key` makes the stream of
    random numbers a function of what is resampled, so the same records give the same bounds.
    """
    rng = np.random.default_rng([_SEED, *key])
    ordered = [np.sort(np.asarray(run, dtype=np.float64)) for run in runs]
    chosen = rng.integers(len(runs), size=(NUM_RESAMPLES, len(runs)))
    medians = np.empty(chosen.shape)
    for index, run in enumerate(ordered):
        places = chosen == index
        medians[places] = _resampled_medians(run, int(places.sum()), rng)
    return np.asarray(np.median(medians, axis=1), dtype=np.float64)


def _resampled_medians(ordered: Floats, count: int, rng: np.random.Generator) -> Floats:
    """`count` medians of bootstrap resamples of `ordered`, without drawing the resamples.

    The k-th smallest of n uniforms follows Beta(k, n - k + 1), and the next one, given it, is the
    smallest of n - k uniforms above it; the sample's quantile function maps both to values. This
    is exact and costs the same for 20 steps as for 20,000.
    """
    n = len(ordered)
    k = (n + 1) // 2
    first = rng.beta(k, n - k + 1, size=count)
    lower = ordered[np.minimum((first * n).astype(int), n - 1)]
    if n % 2:
        return np.asarray(lower, dtype=np.float64)
    second = first + (1 - first) * (1 - rng.random(count) ** (1 / (n - k)))
    return np.asarray((lower + ordered[np.minimum((second * n).astype(int), n - 1)]) / 2)


def percentile_bounds(samples: Floats, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """The central `confidence` share of `samples`."""
    tail = 100 * (1 - confidence) / 2
    low, high = np.percentile(samples, [tail, 100 - tail])
    return float(low), float(high)


def two_level_interval(runs: Sequence[Floats], key: Sequence[int]) -> Interval:
    """Median of the run medians with its two-level bootstrap interval."""
    value = float(np.median([np.median(run) for run in runs]))
    low, high = percentile_bounds(bootstrap_medians(runs, key))
    return Interval(value, min(low, value), max(high, value), len(runs), describe(len(runs)))


def describe(num_runs: int) -> str:
    """What stands in the column `interval` for a bootstrap over `num_runs` repeats."""
    percent = f"{100 * CONFIDENCE:g} %"
    if num_runs == 1:
        return f"{percent} bootstrap of the steps of one run; says nothing about other runs"
    return f"{percent} two-level bootstrap over {num_runs} repeats and their steps"


def harmonic_mean(rates: Floats) -> float:
    """Mean of rates over equal work: total work over total time."""
    return float(len(rates) / np.sum(1.0 / np.asarray(rates, dtype=np.float64)))
