import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.metrics.statistics import (
    NO_INTERVAL,
    Floats,
    Interval,
    interval_of_ratio,
    median_interval,
    repeats_interval,
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
    assert found.how == ratio.how == NO_INTERVAL


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


@given(POSITIVE)
def test_the_interval_over_repeats_holds_the_median_and_stays_inside(values: Floats) -> None:
    found = repeats_interval([np.full(3, value) for value in values])
    assert values.min() <= found.low <= np.median(values) <= found.high <= values.max()
