"""A rank waits until its time is the factor x its CPU seconds: on clocks that stand still."""

import select
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.emulation import pacing
from pipeline.emulation.pacing import Pacer, slowness_of
from pipeline.study.link import LinkSpec


class Machine:
    """Clocks of one process; `work` and `wait` let them run."""

    def __init__(self) -> None:
        self.now, self.thread, self.process = 100.0, 5.0, 7.0
        self.wake, self.waits, self.spun = 0.0, 0, 0.0

    def work(self, seconds: float, *, others: float = 0.0, behind: float = 0.0) -> None:
        """The main thread computes, `others` is the other threads' work, `behind` the core's."""
        self.thread += seconds
        self.process += seconds + others
        self.now += seconds + others + behind

    def wait(self, seconds: float) -> None:
        """Asleep; to wake takes `wake` CPU seconds."""
        self.now += seconds + self.wake
        self.thread += self.wake
        self.process += self.wake
        self.waits += 1


@pytest.fixture
def machine(monkeypatch) -> Machine:
    machine = Machine()
    clocks = SimpleNamespace(
        perf_counter=lambda: machine.now,
        thread_time=lambda: machine.thread,
        process_time=lambda: machine.process,
        sleep=machine.wait,
        clock_gettime=lambda _: machine.spun,
    )
    monkeypatch.setattr(pacing, "time", clocks)
    monkeypatch.setattr(pacing, "SPINNING", {1: 0.0})
    return machine


Event = Callable[[Machine, Pacer], object]


def work(seconds: float, **more: float) -> Event:
    return lambda machine, _: machine.work(seconds, **more)


def wait(seconds: float, threads: float = 0.0, spun: float = 0.0) -> Event:
    """Wait for others, while the threads of a collective work, `spun` of it in those that spin."""

    def event(machine: Machine, _: Pacer) -> None:
        machine.wait(seconds)
        machine.process += threads
        machine.spun += spun

    return event


def settle(_: Machine, pacer: Pacer) -> None:
    pacer.settle()


def waited(_: Machine, pacer: Pacer) -> None:
    pacer.waited()


def on_the_way(_: Machine, pacer: Pacer) -> None:
    pacer.on_the_way()


def begin_step(_: Machine, pacer: Pacer) -> None:
    pacer.begin_step(0)


def forward(_: Machine, pacer: Pacer) -> None:
    pacer.forward_ended()
    pacer.settle()


PLAIN, YARDSTICK = {"dilation": 4.0}, {"dilation": 4.0, "forward_seconds": 0.5}
CASES: dict[str, tuple[dict[str, Any], Sequence[Event], float]] = {
    "work is stretched by the factor": (PLAIN, [work(1), settle], 4),
    "what neighbours took of the core is part of it": (PLAIN, [work(1, behind=2.5), settle], 4),
    "a wait for others pays for nothing that comes after it": (
        PLAIN, [wait(10), settle, work(1), settle], 14,
    ),
    "within one stretch of computation being late counts": (
        PLAIN, [work(1, behind=5), on_the_way, work(1), on_the_way], 8,
    ),
    "but not beyond its end": (PLAIN, [work(1, behind=5), settle, work(1), settle], 6 + 4),
    "only the thread that computes counts": (PLAIN, [work(1, others=1), settle], 4),
    "after a collective the work of its threads is stretched, once": (
        PLAIN, [settle, wait(10, threads=0.5), waited, wait(1), waited], 10 + 3 * 0.5 + 1,
    ),
    "what threads did beside the computation is paid for at the next collective": (
        PLAIN, [work(1, others=1), settle, wait(10), waited, wait(1), waited], 4 + 10 + 3 + 1,
    ),
    "what spins used as many seconds more as time was stretched, and is paid for without that": (
        PLAIN, [wait(10, threads=3, spun=2), waited], 10 + 3 * 1 + 2,
    ),
    "on the way small debts wait": (PLAIN, [work(0.0003), on_the_way], 0.0003),
    "until they are worth it": (PLAIN, [work(0.0003), on_the_way, work(0.0017), on_the_way], 0.008),
    "on cores of its own nothing waits": ({"dilation": 1.0}, [work(1), settle], 1),
    "but for a slow node": (
        {"dilation": 1.0, "slowness": lambda _: 2.0}, [begin_step, work(1), settle], 2,
    ),
    # The machine is at half its speed: what takes it 2 s counts, and is paid for, as 1.
    "CPU seconds count by the forward pass": (
        YARDSTICK, [settle, work(1), forward, work(2), settle], 4 * 1.5,
    ),
    "each forward pass tells anew how fast the machine is": (
        YARDSTICK, [settle, work(1), forward, settle, work(0.25), forward], 4 * (0.5 + 0.5),
    ),
    "threads of a collective count by the same speed": (
        YARDSTICK, [settle, work(1), forward, work(0, others=1), waited], 4 * (0.5 + 0.5),
    ),
}  # fmt: skip
"""Settings of a pacer, events, and the seconds of the machine that pass."""


@pytest.mark.parametrize("name", CASES)
def test_seconds_that_pass(machine, name) -> None:
    settings, events, seconds = CASES[name]
    pacer = Pacer(**settings)
    machine.work(50)  # what was before the start is not paid for
    pacer.start()
    start = machine.now
    for event in events:
        event(machine, pacer)
    assert machine.now - start == pytest.approx(seconds)
    assert pacer.paces == (settings != {"dilation": 1.0})


def test_the_speed_of_the_machine_is_told_at_each_forward_pass(machine) -> None:
    pacer = Pacer(4.0, forward_seconds=0.5)
    pacer.start()
    before = pacer.cpu_seconds()
    for own in (1.0, 0.25, 0.5):
        pacer.settle()
        machine.work(own)
        pacer.forward_ended()
    assert pacer.machine_speeds == [0.5, 2.0, 1.0]
    assert pacer.summary() == {"machine_speed": {"median": 1.0, "least": 0.5, "most": 2.0}}
    assert pacer.cpu_seconds() - before == pytest.approx(3 * 0.5)
    assert Pacer(4.0).summary() == {}


@pytest.mark.parametrize("emulated", [True, False])
def test_all_threads_that_wait_for_sockets_are_found(monkeypatch, emulated) -> None:
    """Also one that is at work when another is seen, as one of Horovod's two loops may be."""
    monkeypatch.setattr(pacing, "SPINNING", {})
    if emulated:
        monkeypatch.setenv(pacing.VARIABLE, "5")
    ours, theirs = socket.socketpair()
    with ours, theirs, select.epoll() as waiting:
        waiting.register(ours, select.EPOLLIN)

        def wait_later(seconds: float) -> None:
            time.sleep(seconds)
            waiting.poll()

        threads = [threading.Thread(target=wait_later, args=(later,)) for later in (0.0, 0.03)]
        for thread in threads:
            thread.start()
        pacing.find_spinning()
        theirs.send(b".")
        for thread in threads:
            thread.join()
    clocks = {~(one.native_id or 0) << 3 | pacing.CLOCK_OF_THREAD for one in threads}
    assert clocks <= set(pacing.SPINNING) if emulated else not pacing.SPINNING


def test_of_threads_that_spin_the_work_of_an_exchange_is_stretched(machine, monkeypatch) -> None:
    """That work is the least that some exchanges took."""
    took = iter([1.5, 0.5, 2.0, 0.75, 1.0])

    def exchange() -> None:
        machine.spun += next(took)

    pacing.time_spinning(exchange)
    assert pacing.SPINNING == {1: 0.0} and machine.spun == 0, "nothing is emulated"
    monkeypatch.setenv(pacing.VARIABLE, "4")
    pacing.time_spinning(exchange)
    assert pacing.SPINNING == {1: 0.5} and next(took, None) is None
    pacer = Pacer(4.0)
    pacer.start()
    start = machine.now
    wait(10, threads=3, spun=2)(machine, pacer)
    pacer.waited()
    assert machine.now - start == 10 + (1 + 0.5) * 3 + 1.5


def test_in_real_time_forward_passes_are_timed_and_nothing_waits(machine) -> None:
    pacer = Pacer(1.0, forward_seconds=0.5)
    pacer.start()
    before = pacer.cpu_seconds(), machine.now
    machine.work(3)
    pacer.settle()
    machine.work(1)
    pacer.forward_ended()
    pacer.settle()
    assert pacer.machine_speeds == [0.5] and machine.waits == 0
    assert (pacer.cpu_seconds() - before[0], machine.now - before[1]) == (4, 4)


def test_a_wait_is_not_paid_for_by_another_one(machine) -> None:
    """To wake takes 40 us of a virtual machine's core: 4 x that is more than the wait is late."""
    machine.wake = 4e-5
    pacer = Pacer(4.0)
    pacer.start()
    start, before = machine.now, pacer.cpu_seconds()
    machine.work(0.001)
    pacer.settle()
    assert machine.waits == 1
    assert machine.now - start == pytest.approx(0.00404)
    pacer.settle()
    pacer.waited()
    assert machine.waits == 1
    assert pacer.cpu_seconds() - before == pytest.approx(0.001)


def test_what_follows_a_settlement_begins_there(machine) -> None:
    """Also where a neighbour takes the core before the clock is read."""
    pacer = Pacer(4.0)
    pacer.start()
    machine.work(0.001)
    pacer.settle()
    settled = machine.now
    machine.wait(0.003)
    assert pacer.moment() == settled
    assert pacer.moment() == machine.now
    pacer.settle()
    machine.work(0.0001)
    pacer.on_the_way()
    assert pacer.moment() == machine.now


PLAIN_LINK = LinkSpec("1gbit", 1000)


def slownesses(link: LinkSpec, node: int, seed: str = "1") -> list[float]:
    """Of a node of four in 200 steps; none for one that is as fast as any."""
    slowness = slowness_of(node, 4, link, seed)
    return [] if slowness is None else [slowness(step) for step in range(200)]


def test_jitter_is_drawn_for_each_node_and_step_and_again_the_same() -> None:
    unsteady = replace(PLAIN_LINK, jitter=0.3)
    drawn = slownesses(unsteady, 0)
    assert drawn == slownesses(unsteady, 0) != slownesses(unsteady, 0, "2")
    assert len(set(drawn)) == 200
    assert 1 <= min(drawn) < 1.01 and 1.29 < max(drawn) <= 1.3


def test_the_last_node_straggles_and_all_jitter() -> None:
    assert [slownesses(PLAIN_LINK, node) for node in range(4)] == [[]] * 4
    slow = replace(PLAIN_LINK, straggler=0.5)
    assert [slownesses(slow, node)[:1] for node in range(4)] == [[], [], [], [2.0]]
    both = replace(slow, jitter=0.3)
    assert [len(slownesses(both, node)) for node in range(4)] == [200] * 4
    assert min(slownesses(both, 3)) >= 2


def test_pauses_are_stretched_with_the_time_of_the_run(monkeypatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    monkeypatch.setenv(pacing.VARIABLE, "2.5")
    answers = iter([False, False, True])
    pacing.asleep(lambda: next(answers))
    assert slept == [2.5 * pacing.PAUSE_SECONDS] * 2
