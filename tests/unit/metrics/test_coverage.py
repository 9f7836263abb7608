"""How often do the intervals and tests hold what they promise? Measured on noise that is known.

The noise has two levels: each run has its own speed, and its steps scatter around that. The truth
is the median over endless runs. Seeds are fixed, so nothing here changes from day to day.
"""

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

from pipeline.metrics.ranks import holm, rank_sum
from pipeline.metrics.statistics import (
    Floats,
    Interval,
    interpolated_bounds,
    interval_of_ratio,
    median_interval,
)

STEPS, WITHIN = 20, 0.04
NUM_STUDIES = 2000
# Speeds of runs relative to each other: even, skewed, with outliers, and of two kinds.
BETWEEN: dict[str, Callable[[np.random.Generator, tuple[int, int]], Floats]] = {
    "normal": lambda rng, size: np.exp(rng.normal(0, 0.02, size)),
    "quiet": lambda rng, size: np.exp(rng.normal(0, 0.002, size)),
    "skewed": lambda rng, size: 1 + 0.03 * rng.exponential(1, size),
    "outliers": lambda rng, size: np.exp(0.012 * rng.standard_t(3, size)),
    "two kinds": lambda rng, size: np.exp(
        rng.normal(0, 0.007, size) + 0.04 * (rng.random(size) < 0.3)
    ),
}


def run_medians(kind: str, repeats: int, studies: int, seed: int) -> Floats:
    """Median step time of each run, shape (studies, repeats)."""
    rng = np.random.default_rng([seed, repeats, sorted(BETWEEN).index(kind)])
    speeds = BETWEEN[kind](rng, (studies, repeats))
    # Steps are as fast as possible or slower, so their noise has one side.
    steps = np.exp(np.abs(rng.normal(0, WITHIN, (studies, repeats, STEPS))))
    return np.asarray(speeds * np.median(steps, axis=-1))


@cache
def truth(kind: str) -> float:
    return float(np.median(run_medians(kind, 100, 2000, seed=0)))


def intervals(medians: Floats) -> list[Interval]:
    return [Interval(float(np.median(m)), *interpolated_bounds(m), len(m), "") for m in medians]


def share(found: list[Interval], value: float) -> float:
    """Percent of the intervals that hold `value`."""
    return 100 * float(np.mean([interval.low <= value <= interval.high for interval in found]))


@pytest.mark.parametrize(
    ("kind", "repeats"),
    [*((kind, 6) for kind in BETWEEN), ("normal", 7), ("skewed", 10), ("outliers", 20)],
)
def test_the_interval_over_repeats_covers_95_percent(kind: str, repeats: int) -> None:
    medians = run_medians(kind, repeats, NUM_STUDIES, seed=1)
    assert 93 <= share(intervals(medians), truth(kind)) <= 97


@pytest.mark.parametrize(
    ("one", "other", "repeats"),
    [("normal", "normal", (6, 6)), ("normal", "quiet", (6, 12)), ("skewed", "normal", (10, 10)),
     ("two kinds", "skewed", (6, 6)), ("two kinds", "skewed", (6, 12)),
     ("outliers", "outliers", (20, 20))],
)  # fmt: skip
def test_the_interval_of_a_ratio_covers_95_percent(one, other, repeats) -> None:
    first = intervals(run_medians(one, repeats[0], NUM_STUDIES, seed=4))
    second = intervals(run_medians(other, repeats[1], NUM_STUDIES, seed=5))
    ratios = [interval_of_ratio(a, b) for a, b in zip(first, second, strict=True)]
    assert 93 <= share(ratios, truth(one) / truth(other)) <= 97


@pytest.mark.parametrize("steps", [5, 8, 20, 25])
def test_the_interval_within_a_run_covers_what_it_says(steps: int) -> None:
    rng = np.random.default_rng([8, steps])
    found = [median_interval(values) for values in rng.lognormal(size=(2000, steps))]
    said = float(found[0].how.split(",")[1].split()[0])
    assert share(found, 1.0) == pytest.approx(said, abs=1.5)


@pytest.mark.parametrize("repeats", [6])
def test_cells_that_are_alike_are_rarely_told_apart(repeats: int) -> None:
    """In at most 5 % of studies does any of ten pairs come out as decided."""
    alarms = 0
    for study in run_medians("skewed", 5 * repeats, 100, seed=9):
        cells = study.reshape(5, repeats)
        tests = [rank_sum(cells[i], cells[j]) for i in range(5) for j in range(i)]
        alarms += min(holm([test.p_value for test in tests])) < 0.05
    # 5 % of 100 and two standard errors of that count.
    assert alarms <= 5 + 2 * 2.2
