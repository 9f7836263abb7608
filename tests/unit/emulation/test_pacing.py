"""A rank waits until its time is the factor x its CPU seconds: on clocks that stand still."""

from __future__ import annotations

import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from pipeline.emulation import pacing
from pipeline.emulation.pacing import Pacer, Speed, speed_of
from pipeline.study.link import LinkSpec
from pipeline.study.spec import WorldSpec


class Machine:
    """Clocks of one process; `work` and `wait` let them run."""

    def __init__(self) -> None:
        self.now, self.thread, self.process = 100.0, 5.0, 7.0
        self.start, self.wake, self.waits = self.now, 0.0, 0

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
    )
    monkeypatch.setattr(pacing, "time", clocks)
    return machine


def paced(machine: Machine, factor: float = 4.0, **kwargs) -> Pacer:
    pacer = Pacer(factor, **kwargs)
    pacer.start()
    machine.start = machine.now
    return pacer


def passed(machine: Machine) -> float:
    return machine.now - machine.start


def test_work_is_stretched_by_the_factor(machine) -> None:
    pacer = paced(machine)
    machine.work(1)
    pacer.settle()
    assert passed(machine) == pytest.approx(4)


def test_what_neighbours_took_of_the_core_is_part_of_it(machine) -> None:
    pacer = paced(machine)
    machine.work(1, behind=2.5)
    pacer.settle()
    assert passed(machine) == pytest.approx(4)


def test_a_wait_for_others_pays_for_nothing_that_comes_after_it(machine) -> None:
    pacer = paced(machine)
    machine.wait(10)
    pacer.settle()
    machine.work(1)
    pacer.settle()
    assert passed(machine) == pytest.approx(14)


def test_within_one_stretch_of_computation_being_late_counts(machine) -> None:
    pacer = paced(machine)
    machine.work(1, behind=5)
    pacer.on_the_way()
    machine.work(1)
    pacer.on_the_way()
    assert passed(machine) == pytest.approx(8)
    machine.work(1, behind=5)
    pacer.settle()
    machine.work(1)
    pacer.settle()
    assert passed(machine) == pytest.approx(8 + 6 + 4)


def test_only_the_thread_that_computes_counts(machine) -> None:
    pacer = paced(machine)
    machine.work(1, others=1)
    pacer.settle()
    assert passed(machine) == pytest.approx(4)


def test_after_a_collective_the_work_of_its_threads_is_stretched(machine) -> None:
    pacer = paced(machine)
    pacer.settle()
    machine.wait(10)
    machine.process += 0.5
    pacer.waited()
    assert passed(machine) == pytest.approx(10 + 3 * 0.5)
    machine.wait(1)
    pacer.waited()
    assert passed(machine) == pytest.approx(12.5)


def test_what_threads_did_beside_the_computation_is_paid_for_at_the_next_collective(
    machine,
) -> None:
    """A node has one core: what reduces gradients there takes it from the backward pass."""
    pacer = paced(machine)
    machine.work(1, others=1)
    pacer.settle()
    assert passed(machine) == pytest.approx(4)
    machine.wait(10)
    pacer.waited()
    assert passed(machine) == pytest.approx(4 + 10 + 3)
    machine.wait(1)
    pacer.waited()
    assert passed(machine) == pytest.approx(4 + 10 + 3 + 1)


def test_a_wait_is_not_paid_for_by_another_one(machine) -> None:
    """To wake takes 40 us of a virtual machine's core: 4 x that is more than the wait is late."""
    machine.wake = 4e-5
    pacer = paced(machine)
    before = pacer.cpu_seconds()
    machine.work(0.001)
    pacer.settle()
    assert machine.waits == 1
    assert passed(machine) == pytest.approx(0.00404)
    pacer.settle()
    pacer.waited()
    assert machine.waits == 1
    assert pacer.cpu_seconds() - before == pytest.approx(0.001)


def test_what_follows_a_settlement_begins_there(machine) -> None:
    """Also where a neighbour takes the core before the clock is read."""
    pacer = paced(machine)
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


def test_on_the_way_small_debts_wait_until_they_are_worth_it(machine) -> None:
    pacer = paced(machine)
    machine.work(0.0003)
    pacer.on_the_way()
    assert passed(machine) == pytest.approx(0.0003)
    machine.work(0.0017)
    pacer.on_the_way()
    assert passed(machine) == pytest.approx(0.008)


def test_what_was_before_the_start_is_not_paid_for(machine) -> None:
    pacer = Pacer(4)
    machine.work(50)
    pacer.start()
    before = machine.now
    pacer.settle()
    assert machine.now == before


def test_on_cores_of_its_own_nothing_waits(machine) -> None:
    pacer = paced(machine, factor=1.0)
    machine.work(1)
    pacer.settle()
    assert passed(machine) == 1
    assert not pacer.paces


def test_a_slow_node_is_paced_also_on_cores_of_its_own(machine) -> None:
    pacer = paced(machine, factor=1.0, speed=Speed(0.5))
    pacer.begin_step(0)
    machine.work(1)
    pacer.settle()
    assert passed(machine) == pytest.approx(2)


def test_jitter_is_drawn_for_each_node_and_step_and_again_the_same() -> None:
    speed = Speed(jitter=0.3, seed="1/node0")
    drawn = [speed.slowness(step) for step in range(200)]
    assert drawn == [speed.slowness(step) for step in range(200)]
    assert len(set(drawn)) == 200
    assert 1 <= min(drawn) < 1.01 and 1.29 < max(drawn) <= 1.3
    assert drawn != [Speed(jitter=0.3, seed="1/node1").slowness(step) for step in range(200)]


def test_the_last_node_straggles_and_all_jitter() -> None:
    plain = WorldSpec(4, 1, "cpu", "gloo", "emulated", None, LinkSpec("1gbit", 1000), 1)
    assert {speed_of(node, plain, "") for node in range(4)} == {Speed()}
    slow = replace(plain, link=LinkSpec("straggler", 1000, straggler=0.5))
    assert [speed_of(node, slow, "").relative for node in range(4)] == [1, 1, 1, 0.5]
    unsteady = replace(plain, link=LinkSpec("jitter", 1000, jitter=0.3))
    assert {speed_of(node, unsteady, "").jitter for node in range(4)} == {0.3}


def test_a_real_process_is_as_slow_as_the_factor_says() -> None:
    """On the real clocks: never faster, however the machine is loaded."""
    import time

    pacer = Pacer(3)
    pacer.start()
    start, before = time.perf_counter(), time.thread_time()
    while time.thread_time() - before < 0.01:
        pass
    spent = time.thread_time() - before
    pacer.settle()
    assert time.perf_counter() - start >= 3 * spent


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    return pauses


def test_pauses_are_stretched_with_the_time_of_the_run(slept, monkeypatch) -> None:
    monkeypatch.setenv(pacing.VARIABLE, "2.5")
    answers = iter([False, False, True])
    pacing.asleep(lambda: next(answers))
    assert slept == [2.5 * pacing.PAUSE_SECONDS] * 2


def test_on_a_real_node_nothing_is_waited_for(slept, monkeypatch) -> None:
    monkeypatch.delenv(pacing.VARIABLE, raising=False)
    pacing.asleep(lambda: pytest.fail("it looked"))
    assert (slept, pacing.dilation()) == ([], 1.0)


def test_cpu_seconds_count_by_the_forward_pass(machine) -> None:
    """The machine is at half its speed: what takes it 2 s counts, and is paid for, as 1."""
    pacer = paced(machine, forward_seconds=0.5)
    pacer.settle()
    start, cpu = pacer.moment(), pacer.cpu_seconds()
    machine.work(1.0)
    pacer.forward_ended()
    pacer.settle()
    assert machine.now - start == pytest.approx(4 * 0.5)
    machine.work(2.0)
    pacer.settle()
    assert machine.now - start == pytest.approx(4 * 1.5)
    assert pacer.cpu_seconds() - cpu == pytest.approx(1.5)
    assert pacer.machine_speeds == [0.5]


def test_each_forward_pass_tells_anew_how_fast_the_machine_is(machine) -> None:
    pacer = paced(machine, forward_seconds=0.5)
    for own, counted in [(1.0, 0.5), (0.25, 0.5), (0.5, 0.5)]:
        pacer.settle()
        start, cpu = pacer.moment(), pacer.cpu_seconds()
        machine.work(own)
        pacer.forward_ended()
        pacer.settle()
        assert machine.now - start == pytest.approx(4 * counted)
        assert pacer.cpu_seconds() - cpu == pytest.approx(counted)
    assert pacer.machine_speeds == [0.5, 2.0, 1.0]


def test_threads_of_a_collective_count_by_the_same_speed(machine) -> None:
    pacer = paced(machine, forward_seconds=0.5)
    pacer.settle()
    machine.work(1.0)
    pacer.forward_ended()
    pacer.settle()
    start = machine.now
    machine.work(0.0, others=1.0)
    pacer.waited()
    assert machine.now - start == pytest.approx(4 * 0.5)


def test_without_a_yardstick_cpu_seconds_count_as_they_are(machine) -> None:
    pacer = paced(machine)
    machine.work(1.0)
    pacer.forward_ended()
    machine.work(1.0)
    assert pacer.machine_speeds == []
    assert pacer.cpu_seconds() == pytest.approx(machine.thread)
