from itertools import accumulate, count

import pytest
import torch

from pipeline.training.clock import EMPTY_TIMINGS, Clock


def test_a_call_is_timed_and_its_result_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = iter([10.0, 10.5])
    monkeypatch.setattr("time.perf_counter", lambda: next(readings))
    assert Clock(torch.device("cpu")).time(lambda: "done") == ("done", 0.5)


def test_the_overhead_is_the_median_of_empty_timings(monkeypatch: pytest.MonkeyPatch) -> None:
    # Every timing reads the clock twice and takes 1, 2, 3, ... seconds.
    readings = accumulate(gap for timing in count(1) for gap in (0, timing))
    monkeypatch.setattr("time.perf_counter", lambda: next(readings))
    assert Clock(torch.device("cpu")).overhead() == (EMPTY_TIMINGS + 1) / 2
