from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.metrics.ranks import (
    DRIFT,
    STEADY,
    Drift,
    drift,
    holm,
    largest_effect_size,
    p_value_above,
    rank_sum,
    smallest_p_value,
)


def test_a_one_sided_test_is_exact_for_two_samples_and_a_sign_test_for_one() -> None:
    low, high = np.arange(1.0, 7.0), np.arange(11.0, 17.0)
    assert p_value_above(high, low) == pytest.approx(1 / 924)
    assert p_value_above(low, high) == pytest.approx(1.0)
    assert p_value_above(high, np.ones(1)) == pytest.approx(1 / 64)
    # Values that are all alike fall back to an approximation, which must not promise more.
    assert p_value_above(np.full(6, 2.0), np.ones(6)) >= 1 / 924


def test_values_that_are_all_alike_differ_in_nothing_and_ties_do_not_make_the_impossible() -> None:
    alike, tied = rank_sum(np.ones(4), np.ones(4)), rank_sum(np.ones(4), np.full(4, 2.0))
    assert (alike.p_value, alike.effect_size) == (1.0, 0.0)
    assert tied.p_value == pytest.approx(smallest_p_value(4, 4))


@pytest.mark.parametrize(("n", "other", "p"), [(3, 3, 0.1), (4, 4, 2 / 70), (6, 6, 2 / 924)])
def test_the_smallest_p_value_is_that_of_groups_apart(n: int, other: int, p: float) -> None:
    assert smallest_p_value(n, other) == pytest.approx(p)
    apart = rank_sum(np.arange(n, dtype=float), 100 + np.arange(other, dtype=float))
    # 2 of the 70 ways to split 8 values are as extreme; the chi-squared value would be 0.021.
    assert apart.p_value == pytest.approx(p)
    assert largest_effect_size(n, other) == pytest.approx(apart.effect_size)


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_never_lowers_nor_reorders(p_values: list[float]) -> None:
    adjusted = holm(p_values)
    assert all(p <= q <= 1 for p, q in zip(p_values, adjusted, strict=True))
    for (p, q), (r, s) in combinations(zip(p_values, adjusted, strict=True), 2):
        assert (p <= r) <= (q <= s) or p == r


def series(last: float, spread: float = 0.02, n: int = 30) -> np.ndarray:
    noise = np.random.default_rng(3).normal(0, spread, n)
    return np.linspace(1, last, n) + noise


@pytest.mark.parametrize(
    ("last", "spread", "verdict"),
    [(1.3, 0.02, DRIFT), (0.75, 0.02, DRIFT), (1.0, 0.02, STEADY), (1.04, 0.001, STEADY)],
)
def test_drift_is_both_large_and_beyond_chance(last: float, spread: float, verdict: str) -> None:
    found = drift(series(last, spread))
    assert found is not None and found.verdict == verdict


def test_a_large_change_that_may_be_chance_is_no_drift() -> None:
    assert Drift(share=0.2, p_value=0.3, n=6).verdict == STEADY


def test_too_short_a_series_is_not_tested() -> None:
    assert drift(series(9.0, n=14)) is None
    assert drift(series(9.0, n=15)) is not None
    assert drift(np.array([])) is None
