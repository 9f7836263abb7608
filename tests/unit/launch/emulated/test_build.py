"""Ends of the ranks of emulated nodes, all together."""

import os
import signal
import time
from collections.abc import Callable, Iterator

import pytest

from pipeline.launch.emulated import build
from pipeline.launch.emulated.build import follow
from pipeline.machine.processes import Child


@pytest.fixture
def start() -> Iterator[Callable[..., Child]]:
    """Start a process that ends with a code after some seconds; all are killed then."""
    started: list[Child] = []

    def one(code: int, seconds: float = 0.0) -> Child:
        def work() -> int:
            time.sleep(seconds)
            return code

        started.append(Child(work))
        return started[-1]

    yield one
    for child in started:
        child.kill()


@pytest.mark.parametrize("victim", [0, 1])
def test_a_kill_is_told_by_its_signal(start, monkeypatch, victim) -> None:
    """Of the meeting place or of a rank, though another one says of itself that it failed."""
    monkeypatch.setattr(build, "GRACE_SECONDS", 0.6)
    started = [start(0, 60), start(0, 60), start(3, 0.3)]
    os.kill(started[victim].pid, signal.SIGKILL)
    assert follow(started) == 128 + signal.SIGKILL


def test_nobody_waits_long_for_a_rank_that_hangs_without_its_meeting_place(
    start, monkeypatch
) -> None:
    monkeypatch.setattr(build, "GRACE_SECONDS", 0.1)
    assert follow([start(1), start(0, 60)]) == 1
