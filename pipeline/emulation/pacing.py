"""Dilated time without control groups: a rank waits until its time is `factor` x its CPU seconds.

Ranks that share a core run at full speed and then wait, wherever their time becomes visible to
others: before a collective, at the marks of a profiled step, at the end of a step. A rank that was
slowed by its neighbours anyway has less to wait for. So each counts as having cores of its own, and
in units of the emulated cluster no part of a step is shorter than the CPU seconds that it took.
"""

from __future__ import annotations

import ctypes
import random
import time
from dataclasses import dataclass

from pipeline.spec import WorldSpec

PR_SET_TIMERSLACK = 29
TIMER_SLACK_NS = 1
"""The kernel lets a wait end up to 50 us late by default, to wake several processes at once."""


@dataclass(frozen=True)
class Speed:
    """How fast a node computes beside the others: 0.5 is half as fast.

    In each step its computation is longer by a share drawn uniformly from 0 to `jitter`; `seed`
    tells one node's draws from another's.
    """

    relative: float = 1.0
    jitter: float = 0.0
    seed: str = ""

    def slowness(self, step: int) -> float:
        """By how much the computation of a step is longer than a plain node's."""
        drawn = random.Random(f"{self.seed}/{step}").random() if self.jitter else 0.0
        return (1 + self.jitter * drawn) / self.relative


def speed_of(node: int, world: WorldSpec, seed: str) -> Speed:
    """What the conditions of the world's link make of a node's speed; the last one straggles."""
    link = world.link
    if link is None:
        return Speed()
    slow = link.straggler is not None and node == world.nodes - 1
    return Speed(link.straggler or 1.0 if slow else 1.0, link.jitter or 0.0, seed)


class Pacer:
    """Paces the process that makes it, on a node that has `cores` cores for it.

    `dilation` seconds of this machine pass for one of the emulated cluster. What counts is the CPU
    time of the calling thread, or that of all threads spread over `cores` where that is more: on a
    node of one core the threads of a collective share it with the step.
    """

    def __init__(self, dilation: float = 1.0, cores: float = 1.0, speed: Speed = Speed()) -> None:
        self.dilation, self.cores, self.speed = dilation, cores, speed
        self.paces = dilation > 1 or speed != Speed(seed=speed.seed)
        self._factor = dilation
        self._due = self._thread = self._process = 0.0
        if self.paces:
            ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, TIMER_SLACK_NS, 0, 0, 0)

    def start(self) -> None:
        """Pace what comes from now on; what was before is not paid for."""
        self._spent()
        self._due = time.perf_counter()

    def begin_step(self, step: int) -> None:
        """Draw how fast the node is in this step."""
        self._factor = self.dilation * self.speed.slowness(step)

    def settle(self, *, keep_credit: bool = False) -> None:
        """Wait until the time since the last call is the factor x the CPU seconds spent in it.

        A call that comes later than that, after a wait for others, begins anew; `keep_credit` lets
        the part that was late count for what follows, within one stretch of computation.
        """
        if not self.paces:
            return
        while (left := self._left()) > 0:
            time.sleep(left)
        if not keep_credit:
            self._due = time.perf_counter()

    def _left(self) -> float:
        """Seconds of this machine until the CPU seconds so far are paid for."""
        self._due += self._factor * self._spent()
        return self._due - time.perf_counter()

    def _spent(self) -> float:
        """Seconds that the node's cores were at work for this process since the last call."""
        thread, process = time.thread_time(), time.process_time()
        spent = max(thread - self._thread, (process - self._process) / self.cores)
        self._thread, self._process = thread, process
        return spent


UNPACED = Pacer()
"""Of a rank whose node is not emulated, or has cores of its own."""
