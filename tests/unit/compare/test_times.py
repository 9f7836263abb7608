"""Times of two result sets: what is the same, what differs, and how often a rerun is called so."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

from pipeline.compare.times import DIFFERENT, SAME, UNDECIDED, cell_times, pooled, verdict
from pipeline.metrics.statistics import Interval


class Timed(NamedTuple):
    """All that is asked of a run here."""

    timed_seconds: Any


def runs(*medians: float) -> Any:
    return [Timed(np.array([seconds])) for seconds in medians]


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.96, 1.04, SAME),
        (1.06, 1.2, DIFFERENT),
        (0.8, 0.94, DIFFERENT),
        (1.01, 1.04, SAME),
        (1.01, 1.2, UNDECIDED),
        (0.8, 1.2, UNDECIDED),
    ],
)
def test_an_interval_is_held_against_the_margin(low: float, high: float, expected: str) -> None:
    assert verdict(Interval(1.0, low, high, 6, ""), 0.05) == expected


def test_one_run_on_a_side_decides_nothing() -> None:
    [found] = cell_times({"a": (runs(1, 2), runs(9))}, 0.05).values()
    assert found.verdict == UNDECIDED and found.ratio is None
    assert (found.one, found.other) == pytest.approx((1.5, 9))
    assert pooled({"a": (runs(1, 2), runs(9))}) is None
    assert cell_times({"a": (runs(1), runs())}, 0.05) == {}


def test_the_same_measurements_are_the_same_however_much_they_vary() -> None:
    [found] = cell_times({"a": (runs(1, 2, 4), runs(1, 2, 4))}, 0.05).values()
    assert found.verdict == SAME and found.ratio is not None and found.ratio.high == 1


def test_more_cells_ask_for_wider_intervals_and_pooling_narrows() -> None:
    cell = (runs(1.0, 1.1, 1.2, 0.9), runs(1.3, 1.0, 1.1, 1.0))
    widths = []
    for count in (1, 40):
        pairs = dict.fromkeys(range(count), cell)
        ratio = cell_times(pairs, 0.05)[0].ratio
        assert ratio is not None
        widths.append(ratio.high / ratio.low)
    whole = pooled(pairs)
    assert widths[1] > 1.5 * widths[0]
    assert whole is not None and whole.high / whole.low < widths[0]


def reruns(generator: np.random.Generator, count: int) -> Iterator[dict[int, Any]]:
    """Perfect reruns of a study of 42 cells with 6 repeats; runs differ by 10 %, some by 60 %."""
    for _ in range(count):
        noise = 0.1 * generator.standard_normal((42, 2, 6))
        noise += 0.5 * (generator.random((42, 2, 6)) < 0.1)
        yield {cell: tuple(runs(*np.exp(side)) for side in pair) for cell, pair in enumerate(noise)}


def test_a_perfect_rerun_is_seldom_called_different() -> None:
    studies = list(reruns(np.random.default_rng(1), 40))
    called = [
        any(times.verdict == DIFFERENT for times in cell_times(pairs, 0.05).values())
        for pairs in studies
    ]
    assert sum(called) <= 2
