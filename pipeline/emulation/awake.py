"""Keep cores awake: a process of the idle class on each, which gives way to any other at once.

A core that halts takes a while to wake, that of a virtual machine a long while, so that the timer
of a link or a packet comes late. Nodes that share a core keep it busy and do not see that; nodes
with a core each wait often, and would be the slower ones.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

BUSY_SECONDS, NAP_SECONDS = 0.25, 0.002
"""An idle core takes over work that waits at another one. Without naps a thread of the kernel once
waited for minutes, and held a lock that a rank needed to end."""


@contextmanager
def awake(cores: Sequence[int]) -> Iterator[None]:
    """Keep these cores from halting for a while; ends with this process, however that ends."""
    spinners = [_spin(core) for core in cores]
    try:
        yield
    finally:
        for pid in spinners:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _spin(core: int) -> int:
    """A child that is busy on a core while its parent lives."""
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
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
