"""Pinning to cores, and cores that are kept from halting."""

import os
import time
from pathlib import Path

from pipeline.emulation.cores import awake, pinned


def test_pinning_holds_for_a_while() -> None:
    before = os.sched_getaffinity(0)
    core = min(before)
    with pinned([core]):
        assert os.sched_getaffinity(0) == {core}
    assert os.sched_getaffinity(0) == before


def children() -> set[int]:
    own = os.getpid()
    return set(map(int, Path(f"/proc/{own}/task/{own}/children").read_text().split()))


def test_each_core_has_a_process_of_the_idle_class_for_a_while() -> None:
    cores, before = sorted(os.sched_getaffinity(0)), children()
    with awake(cores):
        spinners = children() - before
        assert len(spinners) == len(cores)
        deadline = time.monotonic() + 30
        for spinner in spinners:
            found = wanted = (os.SCHED_IDLE, 1)
            while time.monotonic() < deadline:
                found = os.sched_getscheduler(spinner), len(os.sched_getaffinity(spinner))
                if found == wanted:
                    break
                time.sleep(0.01)
            assert found == wanted
    assert children() == before
