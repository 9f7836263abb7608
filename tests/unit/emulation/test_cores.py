"""Pinning to cores; those that are kept from halting are in tests/system."""

import os

from pipeline.emulation.cores import pinned


def test_pinning_holds_for_a_while() -> None:
    before = os.sched_getaffinity(0)
    core = min(before)
    with pinned([core]):
        assert os.sched_getaffinity(0) == {core}
    assert os.sched_getaffinity(0) == before
