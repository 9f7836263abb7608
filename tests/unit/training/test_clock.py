from itertools import accumulate, count

import pytest
import torch

from pipeline.emulation.pacing import Pacer
from pipeline.training.clock import EMPTY_TIMINGS, Clock


def test_a_call_is_timed_and_its_result_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = iter([10.0, 10.5])
    monkeypatch.setattr("time.perf_counter", lambda: next(readings))
    spent = iter([3.0, 3.25])
    monkeypatch.setattr("pipeline.emulation.pacing.time.thread_time", lambda: next(spent))
    assert Clock(torch.device("cpu")).time(lambda: "done") == ("done", (0.5, 0.25))


def test_a_gpu_has_finished_at_both_ends_and_after_the_barrier(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The barrier itself is work of the device, and kernels of the step are only queued."""
    done: list[str] = []
    monkeypatch.setattr("torch.cuda.synchronize", lambda _: done.append("synchronised"))

    def read_clock() -> float:
        done.append("clock")
        return 0.0

    monkeypatch.setattr("time.perf_counter", read_clock)
    clock = Clock(torch.device("cuda"))
    clock.time(lambda: done.append("step"), lambda: done.append("barrier"))
    wait = "synchronised"
    assert done == [wait, "barrier", wait, "clock", "step", wait, "clock"]


def test_the_overhead_is_the_median_of_empty_timings(monkeypatch: pytest.MonkeyPatch) -> None:
    # Every timing reads the clock twice and takes 1, 2, 3, ... seconds.
    readings = accumulate(gap for timing in count(1) for gap in (0, timing))
    monkeypatch.setattr("time.perf_counter", lambda: next(readings))
    assert Clock(torch.device("cpu")).overhead() == (EMPTY_TIMINGS + 1) / 2


def test_the_overhead_is_that_of_the_clock_and_not_of_pacing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pacer = Pacer(4.0)
    monkeypatch.setattr(pacer, "settle", lambda: pytest.fail("an empty timing was paced"))
    assert Clock(torch.device("cpu"), pacer).overhead() > 0


def test_stamps_are_moments_of_the_same_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = iter([10.0, 12.5])
    monkeypatch.setattr("time.perf_counter", lambda: next(readings))
    clock = Clock(torch.device("cpu"))
    assert clock.between(clock.stamp(), clock.stamp()) == 2.5


def test_on_a_gpu_stamps_are_events_and_nothing_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    class Event:
        made = count()

        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            self.at = next(self.made)

        def elapsed_time(self, later: "Event") -> float:
            return 1500.0 * (later.at - self.at)

    monkeypatch.setattr("torch.cuda.Event", Event)
    monkeypatch.setattr("torch.cuda.synchronize", lambda _: pytest.fail("a mark waited"))
    clock = Clock(torch.device("cuda"))
    assert clock.between(clock.stamp(), clock.stamp()) == 1.5
