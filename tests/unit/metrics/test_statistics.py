"""Intervals, rank tests and drift: by hand, by their properties, and what they cover."""

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.metrics import statistics
from pipeline.metrics.statistics import (
    DRIFT,
    NO_INTERVAL,
    NO_RATIO,
    STEADY,
    Floats,
    Interval,
    drift,
    holm,
    interpolated_bounds,
    interval_of_ratio,
    largest_effect_size,
    log_slope,
    median_interval,
    p_value_above,
    rank_sum,
    repeats_interval,
    smallest_p_value,
)


@pytest.mark.parametrize(
    ("n", "low", "high"),
    # Ranks of the 95 % interval of the median, as tabulated for small samples.
    [(6, 1, 6), (10, 2, 9), (20, 6, 15), (25, 8, 18)],
)
def test_order_statistics_are_the_tabulated_ranks(n: int, low: int, high: int) -> None:
    found = median_interval(np.arange(1, n + 1, dtype=float))
    assert (found.low, found.high) == (low, high)


def test_too_few_values_say_what_they_cover() -> None:
    found = median_interval(np.array([3.0, 1.0, 2.0]))
    assert (found.low, found.value, found.high) == (1.0, 2.0, 3.0)
    assert "75.0 % coverage" in found.how


def runs_of(*centres: float) -> list[Floats]:
    """Runs of 20 steps whose medians are the centres."""
    return [np.linspace(0.9, 1.1, 20) * centre for centre in centres]


def test_six_repeats_get_an_interval_between_their_order_statistics() -> None:
    found = repeats_interval(runs_of(1, 2, 3, 4, 5, 6))
    assert found.value == pytest.approx(3.5)
    # Of 6 values the extremes cover 96.9 %, the next ones 78 %: near the extremes, but inside.
    assert 1 < found.low < 1.5 and 5.5 < found.high < 6
    assert found.how == "95 % interval from order statistics of 6 repeats"


@pytest.mark.parametrize("n", [1, 2, 5])
def test_few_repeats_have_no_interval(n: int) -> None:
    found = repeats_interval(runs_of(*range(1, n + 1)))
    ratio = interval_of_ratio(found, repeats_interval(runs_of(*range(1, 8))))
    assert (found.how, ratio.how) == (NO_INTERVAL, NO_RATIO)


def test_a_repeat_counts_once_however_many_steps_it_has() -> None:
    short, long = np.linspace(1, 2, 20), np.linspace(1, 2, 2000)
    assert repeats_interval([short] * 7) == repeats_interval([short] * 6 + [long])


POSITIVE = st.lists(st.floats(0.01, 100), min_size=2, max_size=12).map(np.asarray)


@given(POSITIVE, POSITIVE, st.floats(0.1, 10))
def test_a_ratio_has_no_unit_and_turns_round(one: Floats, other: Floats, factor: float) -> None:
    def interval(values: Floats) -> Interval:
        return repeats_interval([np.full(3, value) for value in values])

    ratio = interval_of_ratio(interval(one), interval(other))
    assert ratio.low <= ratio.value <= ratio.high
    scaled = interval_of_ratio(interval(one * factor), interval(other * factor))
    turned = interval_of_ratio(interval(other), interval(one))
    for found in (
        (scaled.low, scaled.value, scaled.high),
        (1 / turned.high, 1 / turned.value, 1 / turned.low),
    ):
        assert found == pytest.approx((ratio.low, ratio.value, ratio.high), rel=1e-6)


def test_the_slope_of_a_power_law_is_its_exponent() -> None:
    sizes = [8, 32, 128]
    assert log_slope(sizes, [3 * n**0.5 for n in sizes]) == pytest.approx(0.5)
    assert log_slope(sizes, [2, 2, 2]) == pytest.approx(0, abs=1e-12)


def test_a_one_sided_test_is_exact_for_two_samples_and_a_sign_test_for_one() -> None:
    low, high = np.arange(1.0, 7.0), np.arange(11.0, 17.0)
    assert p_value_above(high, low) == pytest.approx(1 / 924)
    assert p_value_above(low, high) == pytest.approx(1.0)
    assert p_value_above(high, np.ones(1)) == pytest.approx(1 / 64)
    # Values that are all alike fall back to an approximation, which must not promise more.
    assert p_value_above(np.full(6, 2.0), np.ones(6)) >= 1 / 924


def test_values_that_are_all_alike_differ_in_nothing_and_ties_do_not_make_the_impossible() -> None:
    assert rank_sum(np.ones(4), np.ones(4)) == (1.0, 0.0)
    p_value, _ = rank_sum(np.ones(4), np.full(4, 2.0))
    assert p_value == pytest.approx(smallest_p_value(4, 4))


@pytest.mark.parametrize(("n", "other", "p"), [(3, 3, 0.1), (4, 4, 2 / 70), (6, 6, 2 / 924)])
def test_the_smallest_p_value_is_that_of_groups_apart(n: int, other: int, p: float) -> None:
    assert smallest_p_value(n, other) == pytest.approx(p)
    p_value, effect = rank_sum(np.arange(n, dtype=float), 100 + np.arange(other, dtype=float))
    # 2 of the 70 ways to split 8 values are as extreme; the chi-squared value would be 0.021.
    assert p_value == pytest.approx(p)
    assert largest_effect_size(n, other) == pytest.approx(effect)


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.6, 0.9, 0.02]) == pytest.approx([1, 1, 0.06])
    assert holm([]) == []


def series(last: float, spread: float = 0.02, n: int = 30) -> np.ndarray:
    noise = np.random.default_rng(3).normal(0, spread, n)
    return np.linspace(1, last, n) + noise


@pytest.mark.parametrize(
    ("last", "spread", "verdict"),
    [(1.3, 0.02, DRIFT), (0.75, 0.02, DRIFT), (1.0, 0.02, STEADY), (1.04, 0.001, STEADY)],
)
def test_drift_is_both_large_and_beyond_chance(last: float, spread: float, verdict: str) -> None:
    found = drift(series(last, spread))
    assert found is not None and found[1] == verdict


def test_a_large_change_that_may_be_chance_is_no_drift() -> None:
    found = drift(np.array([1.0, 2.0] * 3 + [1.0] * 6 + [2.5, 1.5] * 3))
    assert found is not None and found[0] > 0.2 and found[1] == STEADY


def test_too_short_a_series_is_not_tested() -> None:
    assert drift(series(9.0, n=14)) is None
    assert drift(series(9.0, n=15)) is not None
    assert drift(np.array([])) is None


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
     ("outliers", "outliers", (20, 20))],
)  # fmt: skip
def test_the_interval_of_a_ratio_covers_95_percent(one, other, repeats) -> None:
    first = intervals(run_medians(one, repeats[0], NUM_STUDIES, seed=4))
    second = intervals(run_medians(other, repeats[1], NUM_STUDIES, seed=5))
    ratios = [interval_of_ratio(a, b) for a, b in zip(first, second, strict=True)]
    assert 93 <= share(ratios, truth(one) / truth(other)) <= 97


def test_cells_that_are_alike_are_rarely_told_apart() -> None:
    """In at most 5 % of studies does any of ten pairs of six repeats come out as decided."""
    alarms = 0
    for study in run_medians("skewed", 30, 100, seed=9):
        cells = study.reshape(5, 6)
        tests = [rank_sum(cells[i], cells[j]) for i in range(5) for j in range(i)]
        alarms += min(holm([p_value for p_value, _ in tests])) < 0.05
    # 5 % of 100 and two standard errors of that count.
    assert alarms <= 5 + 2 * 2.2


@pytest.mark.parametrize("n", [2, 6, 41, 1999])
def test_many_values_are_counted_as_few_are(monkeypatch, n: int) -> None:
    exact = statistics._coverages(n)
    monkeypatch.setattr(statistics, "MOST_EXACT", 0)
    assert statistics._coverages.__wrapped__(n) == pytest.approx(exact)
