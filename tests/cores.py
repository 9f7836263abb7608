"""Where the ranks of a test run: on one core where the machine has too few for their threads.

Gloo's event loop tries to lock a connection and polls anew until it can (`Pair::handleEvents`). On
few cores the thread that holds the lock is often one that waits for a core, so most of the CPU
time went there: 27 million polls for 280,000 messages in one launch of four ranks. On one core, and
without preemption by whatever thread a message wakes (SCHED_BATCH), whoever holds a lock lets go of
it before the loop runs: 440,000 polls, and half of the CPU time. No number changes.
"""

import os
import re
from collections.abc import Sequence

from pipeline.machine.limits import usable_cores

WORKER = "PYTEST_XDIST_WORKER"
"""pytest's variable: `gw1` is the second worker of as many as there are cores."""


def share_a_core(world: int) -> None:
    """Have this process, and what it forks, run on one core where there are few for `world` ranks.

    Call it in a process of its own, before it has threads.
    """
    core = core_for(world, usable_cores(), os.environ.get(WORKER, ""))
    if core is not None:
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        os.sched_setaffinity(0, {core})


def core_for(world: int, cores: Sequence[int], worker: str) -> int | None:
    """The core of this worker of the tests; None where each rank can have two of its own."""
    if world == 1 or len(cores) >= 2 * world:
        return None
    number = re.search(r"\d+$", worker)
    return cores[int(number[0]) % len(cores) if number else 0]
