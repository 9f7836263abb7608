import numpy as np
import pytest

from pipeline.metrics.statistics import (
    bootstrap_medians,
    harmonic_mean,
    median_interval,
    percentile_bounds,
    two_level_interval,
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


@pytest.mark.parametrize("n", [25, 24])
def test_resampled_medians_follow_the_plain_bootstrap(n: int) -> None:
    rng = np.random.default_rng(1)
    values = rng.lognormal(size=n)
    plain = np.median(rng.choice(values, size=(20000, n)), axis=1)
    quick = bootstrap_medians([values], (0,))
    for share in (5, 25, 50, 75, 95):
        gap = abs(np.percentile(plain, share) - np.percentile(quick, share))
        assert gap < 0.08 * values.std()


def test_repeats_that_differ_widen_the_interval() -> None:
    rng = np.random.default_rng(2)
    alike = [rng.normal(1.0, 0.01, 25) for _ in range(5)]
    apart = [values + shift for values, shift in zip(alike, (0, 0.1, 0.2, 0.3, 0.4), strict=True)]
    narrow, wide = two_level_interval(alike, (0,)), two_level_interval(apart, (0,))
    assert wide.high - wide.low > 5 * (narrow.high - narrow.low)
    assert wide.low <= wide.value <= wide.high


def test_same_key_gives_the_same_bounds_and_another_key_others() -> None:
    runs = [np.linspace(1, 2, 20), np.linspace(1.1, 2.2, 20)]
    assert two_level_interval(runs, (1, 2)) == two_level_interval(runs, (1, 2))
    assert (bootstrap_medians(runs, (1, 2)) != bootstrap_medians(runs, (1, 4))).any()


def test_percentile_bounds_hold_the_middle() -> None:
    assert percentile_bounds(np.arange(1001.0)) == pytest.approx((25.0, 975.0))


def test_harmonic_mean_is_total_work_over_total_time() -> None:
    assert harmonic_mean(np.array([100.0, 50.0])) == pytest.approx(200 / 3)
