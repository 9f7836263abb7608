"""Each node's cores: its own, or shared with other nodes; `awake` keeps them from halting."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

OWN, PACED = "own", "paced"


@dataclass(frozen=True)
class Shares:
    """The cores of each node."""

    places: Sequence[Sequence[int]]

    @property
    def kind(self) -> str:
        """`own` where no two nodes share a core, else `paced`."""
        cores = [core for place in self.places for core in place]
        return OWN if len(cores) == len(set(cores)) else PACED

    @contextmanager
    def of(self, place: int) -> Iterator[None]:
        """Pin this process, and all that it starts, to the cores of node `place` for a while."""
        before = os.sched_getaffinity(0)
        _pin(self.places[place])
        yield
        _pin(before)


def _pin(cores: Iterable[int]) -> None:
    """Every thread of this process: the call for a process moves the calling thread alone."""
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread.name), cores)


BUSY_SECONDS, NAP_SECONDS = 0.25, 0.002
"""An idle core takes over work that waits at another one. Without naps a thread of the kernel once
waited for minutes, and held a lock that a rank needed to end."""


@contextmanager
def awake(cores: Sequence[int]) -> Iterator[None]:
    """Keep these cores from halting for a while; ends with this process, however that ends.

    Each has a child of the idle class that is busy on it while this process lives.
    """
    parent, spinners = os.getpid(), []
    for core in cores:
        if pid := os.fork():
            spinners.append(pid)
            continue
        try:
            os.sched_setaffinity(0, [core])
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
            while os.getppid() == parent:
                until = time.monotonic() + BUSY_SECONDS
                while time.monotonic() < until:
                    pass
                time.sleep(NAP_SECONDS)
        finally:
            os._exit(1)
    try:
        yield
    finally:
        for pid in spinners:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
