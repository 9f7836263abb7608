from __future__ import annotations

import time

import pytest
import torch

from pipeline.emulation import pacing
from pipeline.parallel.step import Stepper
from pipeline.strategies.horovod import plan

hvd = pytest.importorskip("horovod.torch", reason=f"Horovod is {plan.why_unusable()}")
step = pytest.importorskip("pipeline.strategies.horovod.step")


class Collectives:
    """Handles that are done after so many polls."""

    def __init__(self, polls: dict[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
        self.polls = polls
        self.seen: list[int] = []
        self.slept: list[float] = []
        monkeypatch.setattr(hvd, "poll", self.poll)
        monkeypatch.setattr(time, "sleep", self.slept.append)

    def poll(self, handle: int) -> bool:
        self.seen.append(handle)
        self.polls[handle] -= 1
        return self.polls[handle] == 0


def test_on_emulated_nodes_it_sleeps_between_two_polls(monkeypatch) -> None:
    monkeypatch.setenv(pacing.VARIABLE, "4")
    given = Collectives({7: 3, 8: 1}, monkeypatch)
    step.wait_asleep([7, None, 8])
    assert given.seen == [7, 7, 7, 8]
    assert given.slept == [4 * pacing.PAUSE_SECONDS] * 2


def test_elsewhere_horovod_waits_as_it_does(monkeypatch) -> None:
    monkeypatch.delenv(pacing.VARIABLE, raising=False)
    given = Collectives({7: 3}, monkeypatch)
    step.wait_asleep([7])
    assert given.seen == given.slept == []


def test_a_resume_sends_weights_and_nothing_of_the_optimiser(monkeypatch) -> None:
    """`broadcast_object` pickles, which ends at 2 GiB; every rank has read the state by then."""
    sent: list[str] = []

    def broadcast(named: list[tuple[str, torch.Tensor]], root: int) -> None:
        sent.extend(name for name, _ in named)

    def refused(*given: object, **named: object) -> None:
        pytest.fail("the optimiser is sent")

    monkeypatch.setattr(hvd, "broadcast_parameters", broadcast)
    for name in ("broadcast_object", "broadcast_optimizer_state"):
        monkeypatch.setattr(hvd, name, refused)
    monkeypatch.setattr(Stepper, "load", lambda self, state: sent.append(f"read {state}"))
    stepper = step.HorovodStepper.__new__(step.HorovodStepper)
    stepper.model = torch.nn.Linear(2, 1)
    stepper.load("a state")
    assert sent == ["read a state", "weight", "bias"]


def test_its_barrier_is_a_collective_of_its_own(monkeypatch) -> None:
    names: list[str] = []
    monkeypatch.setattr(step.Job, "mean", lambda self, value, name: names.append(name))
    step.Job(0, 2).barrier()
    assert names == ["barrier"]
