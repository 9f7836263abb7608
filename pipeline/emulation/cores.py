"""Each node's cores: a process is pinned to them, and they are kept from halting."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from pipeline.machine.control_groups import cpu_quota
from pipeline.machine.forks import Child


@contextmanager
def pinned(cores: Iterable[int]) -> Iterator[None]:
    """Pin this process, and all that it starts, to these cores for a while."""
    before = os.sched_getaffinity(0)
    _pin(cores)
    yield
    _pin(before)


def _pin(cores: Iterable[int]) -> None:
    """Every thread of this process: the call for a process moves the calling thread alone."""
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread.name), cores)


BUSY_SECONDS, NAP_SECONDS = 0.25, 0.002
"""Without naps a thread of the kernel once waited for minutes, with a lock that a rank needed."""


@contextmanager
def awake(cores: Sequence[int]) -> Iterator[None]:
    """Keep these cores from halting for a while; ends with this process, however that ends.

    Each has a child of the idle class that is busy on it and gives way to every other program.
    A core that halts takes its time to wake, which a rank's step would then have. Under a quota (of
    a container, say) they may halt: what keeps them awake would use up the time of the ranks.
    """

    def spin(core: int) -> None:
        os.sched_setaffinity(0, [core])
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        while True:
            until = time.monotonic() + BUSY_SECONDS
            while time.monotonic() < until:
                pass
            time.sleep(NAP_SECONDS)

    kept = cores if cpu_quota() is None else ()
    spinners = [Child(partial(spin, core), at_exit=False) for core in kept]
    try:
        yield
    finally:
        for spinner in spinners:
            spinner.kill()
