"""Which parts of a step, in dilated time, are shorter than the CPU seconds spent in them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from bench.emulated.cpu_seconds import LEAST_SECONDS, Tally
from pipeline.records import RunRecord, Step
from pipeline.study.profiling import IN_STEP, PHASES


def record(steps: Sequence[tuple[float, float | None]], phase: float | None = None) -> RunRecord:
    """Steps of (seconds, CPU seconds); `phase` is the CPU seconds of a phase of 10 ms."""
    profiled = dict.fromkeys(PHASES, 0.01), dict.fromkeys(IN_STEP, phase or 0.0)
    phases, cpu_phases = profiled if phase is not None else (None, None)
    made = [
        Step(n, 0, seconds, 64, 1.0, 1.0, 1e-3, n > 0, phases, cpu, cpu_phases)
        for n, (seconds, cpu) in enumerate(steps)
    ]
    return RunRecord({}, made)


def test_steps_shorter_than_their_cpu_seconds_are_counted_untimed_ones_too() -> None:
    tally = Tally()
    tally.add(record([(0.9, 1.0), (1.0, 1.0)]))
    tally.add(record([(1.5, 1.0)]))
    assert tally.told() == {
        "runs": 2,
        "steps": {"number": 3, "shorter": 1, "least": pytest.approx(0.9)},
        "phases": {"number": 0, "shorter": 0, "least": None},
    }


def test_phases_that_a_clock_cannot_tell_from_nothing_are_left_out() -> None:
    tally = Tally()
    tally.add(record([(1.0, 0.5)], phase=0.02))
    assert tally.told()["phases"] == {"number": 5, "shorter": 5, "least": pytest.approx(0.5)}
    tally.add(record([(1.0, 0.5)], phase=LEAST_SECONDS / 2))
    assert tally.phases.number == 5


def test_records_from_before_cpu_seconds_count_for_nothing() -> None:
    tally = Tally()
    tally.add(record([(1.0, None)]))
    assert tally.steps.number == 0
