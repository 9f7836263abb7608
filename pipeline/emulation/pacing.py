"""Dilated time without control groups: a rank waits until its time is `factor` x its CPU seconds.

Ranks that share a core run at full speed and then wait, wherever their time becomes visible to
others: before a collective, at the marks of a profiled step, at the end of a step. A rank that was
slowed by its neighbours anyway has less to wait for. So each counts as having cores of its own, and
in units of the emulated cluster no part of a step is shorter than the CPU seconds that it took.

Those are the CPU seconds of the thread that computes. The threads of Gloo and Horovod poll: the
longer a step lasts, the more CPU seconds they use, and a rank that paid for these while it computes
would make them use still more. So a rank pays for them once, after a collective (`Pacer.waited`).
Some are known to spin (`find_spinning`). What they take beyond the work of an exchange
(`time_spinning`) is paid for without the factor: a node's only core was theirs for as large a share
of the stretched time.
Nor does a rank pay for its waits: one takes 30 to 50 us of a virtual machine's core, and to pay for
that by another one never ends.

The same work takes a core more CPU seconds after a wait, beside neighbours, and whenever other
guests of the machine's host use its caches. With `forward_seconds` of a yardstick (see
`pipeline.launch.emulated`) a rank pays for what its work would take at the machine's undisturbed
speed: each forward pass, whose work is known, tells how fast the machine is now, and the CPU
seconds from its beginning on, up to the next one's, count by that. In real time a rank waits for
nothing, and its forward passes are timed alike, so that both kinds of runs can be compared.
"""

from __future__ import annotations

import ctypes
import os
import random
import re
import statistics
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from pipeline.study.link import LinkSpec

PR_SET_TIMERSLACK = 29
TIMER_SLACK_NS = 1
"""The kernel lets a wait end up to 50 us late by default, to wake several processes at once."""

CLOCK_OF_THREAD = 6
"""Low bits of the number of a clock that counts a thread's CPU seconds, see clock_getres(2)."""

SMALL_SECONDS = 1e-3
"""Seconds of the run by which a gradient may be sent too early: a wait costs the core's cache."""


def slowness_of(node: int, count: int, link: LinkSpec, seed: str) -> Callable[[int], float] | None:
    """Factor by which a node of `count` computes longer in each step; None for a plain one.

    The last node straggles by the link's condition. Of its jitter each step has a share drawn
    uniformly; `seed` tells one node's draws from another's.
    """
    speed, jitter = (node == count - 1 and link.straggler) or 1.0, link.jitter or 0.0
    if speed == 1 and not jitter:
        return None

    def slowness(step: int) -> float:
        return (1 + jitter * random.Random(f"{seed}/{step}").random()) / speed

    return slowness


class Pacer:
    """Paces the thread that makes it.

    `dilation` seconds of this machine pass for one of the emulated cluster, `slowness` is that of
    its node, `forward_seconds` what a forward pass of the rank's micro-batch takes by the
    yardstick, in CPU seconds; None where CPU seconds count as they are. `move` is called with each
    step before it begins.
    """

    def __init__(
        self,
        dilation: float = 1.0,
        slowness: Callable[[int], float] | None = None,
        forward_seconds: float | None = None,
        move: Callable[[int], None] | None = None,
    ) -> None:
        self.dilation, self._slowness, self._move = dilation, slowness, move
        self._forward_seconds = forward_seconds
        self.machine_speeds: list[float] = []
        """Speed of this machine over the yardstick's, at each forward pass so far."""
        # In real time, at full speed, there is nothing to wait for.
        self.paces = dilation > 1 or slowness is not None
        self.has_yardstick = forward_seconds is not None
        self._factor = dilation
        self._due = self._cpu = self._counted = self._waits = 0.0
        self._others_from = self._spun_from = 0.0
        self._per_second = 1.0
        self._settled_at: float | None = None
        if self.paces:
            ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, TIMER_SLACK_NS, 0, 0, 0)

    def cpu_seconds(self) -> float:
        """CPU seconds of this thread so far, without its waits; by the yardstick where it paces."""
        return self._counted + self._per_second * (self._own() - self._cpu)

    def forward_ended(self) -> None:
        """A forward pass has ended that began with a settlement; count by its speed from there."""
        own = self._own() - self._cpu  # since that settlement
        if self._forward_seconds is not None and own > 0:
            speed = self._forward_seconds / own
            self.machine_speeds.append(speed)
            if self.paces:
                self._per_second = speed

    def moment(self) -> float:
        """The time now; right after a settlement, the time at which what follows began.

        A neighbour may take the core between a settlement and the reading of the clock, and what
        follows would seem to take less time than its CPU seconds.
        """
        settled, self._settled_at = self._settled_at, None
        return time.perf_counter() if settled is None else settled

    def start(self) -> None:
        """Pace what comes from now on; what was before is not paid for."""
        self._spent()
        self._others_from, self._spun_from = self._of_others(), _spun()
        self._begin()

    def begin_step(self, step: int) -> None:
        """Move to the cores of this step, and draw how fast the node is in it."""
        if self._move is not None:
            self._move(step)
        if self._slowness is not None:
            self._factor = self.dilation * self._slowness(step)

    def settle(self) -> None:
        """Wait until the time since the last call is the factor x the CPU seconds spent in it.

        A call that comes later than that, after a wait for others, begins anew.
        """
        if self.paces:
            self._wait(self._left())
            self._begin()
        elif self.has_yardstick:
            self._spent()  # so that a forward pass is timed from its beginning

    def summary(self) -> dict[str, Any]:
        """The machine's speed over the yardstick's, of all forward passes; nothing without one."""
        if not (speeds := self.machine_speeds):
            return {}
        range_of = {"median": statistics.median(speeds), "least": min(speeds), "most": max(speeds)}
        return {"machine_speed": range_of}

    def waited(self) -> None:
        """After a collective: as `settle`, and pay for what other threads did since the last one.

        The threads of Gloo and Horovod worked at full speed while the wire was stretched, and those
        that reduce gradients beside the backward pass did so while the rank was paced.
        """
        if self.paces:
            others, spun = self._of_others() - self._others_from, _spun() - self._spun_from
            worked = min(spun, sum(SPINNING.values()))
            self._wait(self._left())
            # Less one: while they worked, as many seconds of the machine went by.
            more = (others + worked) * (self._factor * self._per_second - 1)
            self._wait(more + spun - worked)
            # What polls while this rank waits is not paid.
            self._others_from, self._spun_from = self._of_others(), _spun()
            self._begin()

    def on_the_way(self) -> None:
        """Wait within a stretch of computation, where more than SMALL_SECONDS are to be paid for.

        Unlike `settle` it keeps the account: time lost to a neighbour pays for what follows.
        """
        self._settled_at = None
        if self.paces and (left := self._left()) > SMALL_SECONDS * self.dilation:
            self._wait(left)

    def _begin(self) -> None:
        self._due = self._settled_at = time.perf_counter()

    def _of_others(self) -> float:
        """CPU seconds of the other threads of this process so far, without those that spin."""
        return time.process_time() - time.thread_time() - _spun()

    def _wait(self, seconds: float) -> None:
        if seconds > 0:
            # What the wait itself takes of the core is no work of the rank.
            before = time.thread_time()
            time.sleep(seconds)
            self._waits += time.thread_time() - before

    def _left(self) -> float:
        """Seconds of this machine until the CPU seconds so far are paid for."""
        # Piece by piece: factor and speed may be others by the next one.
        self._due += self._factor * self._spent()
        return self._due - time.perf_counter()

    def _spent(self) -> float:
        """CPU seconds of this thread since the last call, by the yardstick."""
        before, self._counted, self._cpu = self._counted, self.cpu_seconds(), self._own()
        return self._counted - before

    def _own(self) -> float:
        """CPU seconds of this thread so far as the machine took them, its waits left out."""
        return time.thread_time() - self._waits


UNPACED = Pacer()
"""Pacer of a rank whose node is not emulated, or has cores of its own."""

VARIABLE = "SAMESTEP_DILATION"
"""Seconds of this machine for one of the run, set for ranks on emulated nodes alone."""

PAUSE_SECONDS = 2.5e-4  # polling interval in dilated seconds: a small part of a step
SPINNING: dict[int, float] = {}
"""Clocks of the threads of this process that `find_spinning` found, and the CPU seconds that each
works for an exchange of gradients."""
EXCHANGES = 5
"""Of which the least counts as work."""
MORE_SECONDS = 0.1
"""For more of them after the first. Horovod has two, and the run of a process in which one was not
found took 20 to 23 ms a step where others took 18."""


def find_spinning(patience: float = 1.0) -> None:
    """On an emulated node find this process's threads that wait for sockets, as Gloo's loops do.

    Where a peer sent what its rank has no buffer for yet, up to the next cycle of Horovod, a loop
    asks the kernel again and again. A line in the run's log says where none was seen waiting.
    """
    if VARIABLE not in os.environ:
        return
    SPINNING.clear()
    end = time.monotonic() + patience
    while time.monotonic() < end:
        for task in Path("/proc/self/task").iterdir():
            with suppress(OSError):  # a thread that ended meanwhile
                # The kernel's function in which a thread sleeps, `ep_poll` or `do_epoll_wait`.
                if re.match("ep_|do_epoll", (task / "wchan").read_text()):
                    if not SPINNING:  # others may be at work
                        end = time.monotonic() + MORE_SECONDS
                    SPINNING[~int(task.name) << 3 | CLOCK_OF_THREAD] = 0.0
        time.sleep(1e-3)
    if not SPINNING:
        print("no thread was seen waiting for sockets; what spins is paid for as work")


def time_spinning(exchange: Callable[[], object]) -> None:
    """On an emulated node time what the threads that spin do for an exchange. Collective.

    Ranks that begin one after the other, with no computation between, hardly make them spin; the
    least of some is work alone.
    """
    if VARIABLE not in os.environ:
        return
    took = dict[int, list[float]]()
    for _ in range(EXCHANGES):
        before = {clock: time.clock_gettime(clock) for clock in SPINNING}
        exchange()
        for clock, begun in before.items():
            took.setdefault(clock, []).append(time.clock_gettime(clock) - begun)
    SPINNING.update({clock: min(each) for clock, each in took.items()})


def _spun() -> float:
    """CPU seconds of the threads that spin so far."""
    return sum(map(time.clock_gettime, SPINNING))


def dilation() -> float:
    """By how much a wait of so many seconds must be stretched; 1 where no node is emulated."""
    return float(os.environ.get(VARIABLE, "1"))


def asleep(done: Callable[[], bool]) -> None:
    """On an emulated node poll `done()` and sleep between polls; elsewhere return at once.

    Spinning would starve the node that it waits for.
    """
    if VARIABLE not in os.environ:
        return
    pause = PAUSE_SECONDS * dilation()
    while not done():
        time.sleep(pause)
