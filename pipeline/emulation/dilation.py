"""Time-dilation factor of emulated nodes; the cores of each, pinned to and kept from halting."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from pipeline.machine.limits import cpu_quota
from pipeline.machine.processes import Child
from pipeline.study.spec import WorldSpec

LEAST = "SAMESTEP_LEAST_DILATION"
"""Environment variable: dilate by this at least, to compare factors."""

HEADROOM = 0.25
"""Idle share of a core that ranks share. Turns of the others make a rank late by 0.5 to 2 % of a
step with it, by 2 to 4 % on a core that is always busy."""

YARDSTICK_HEADROOM, YARDSTICK_LEAST = 1.5, 5.0
"""With a yardstick CPU seconds are up to 1.4 times as many as undisturbed, and Horovod's threads
need room next to the ranks that compute: on eight nodes on two cores its step takes 5 % longer at a
headroom of 1, and as long at 1.5 as at 4. Every run is paced, those of one node too, by a factor at
which two ranks share a core."""

BUSY_SECONDS, NAP_SECONDS = 0.25, 0.002
"""Without naps a thread of the kernel once waited for minutes, with a lock that a rank needed."""


def dilate(world: WorldSpec, cores: int) -> float:
    """Seconds of the machine that pass for one second of the emulated cluster.

    It is the factor by which the nodes of `world.dilated_for` fit on `cores`, 1 where they do as
    they are. Nodes that share a core get `HEADROOM` more time than all of them at work at once
    would take, with a yardstick `YARDSTICK_HEADROOM`. In real time nothing is stretched.
    """
    if world.real_time:
        return 1.0
    headroom = YARDSTICK_HEADROOM if world.yardstick else HEADROOM
    # On the fullest core.
    shared = -(-(world.dilated_for or world.nodes) * (world.cores_per_node or 1) // cores)
    needed = 1 if shared == 1 else shared + math.ceil(headroom * shared)
    asked_for = float(os.environ.get(LEAST, "1"))
    return max(asked_for, YARDSTICK_LEAST if world.yardstick else 1, needed)


def places(count: int, cores_per_node: int, cores: Sequence[int]) -> list[list[int]]:
    """The cores of each of `count` nodes, dealt out in turn, so that every core is as full."""
    width = min(cores_per_node, len(cores))
    return [
        sorted({cores[(node * cores_per_node + core) % len(cores)] for core in range(width)})
        for node in range(count)
    ]


def pin(cores: Collection[int]) -> None:
    """Pin this process, and all that it starts from now on, to these cores."""
    # Every thread: the call for a process moves the calling one alone.
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread.name), cores)


@contextmanager
def pinned(cores: Collection[int]) -> Iterator[None]:
    """Pin this process, and all that it starts, to these cores for a while."""
    before = os.sched_getaffinity(0)
    pin(cores)
    yield
    pin(before)


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

    with contextlib.ExitStack() as stack:
        for core in cores if cpu_quota() is None else ():
            stack.enter_context(Child(partial(spin, core), at_exit=False))
        yield
