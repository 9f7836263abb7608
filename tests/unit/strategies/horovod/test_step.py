from __future__ import annotations

import pytest
import torch

from pipeline.parallel.step import Stepper
from pipeline.strategies.horovod import plan

hvd = pytest.importorskip("horovod.torch", reason=f"Horovod is {plan.why_unusable()}")
step = pytest.importorskip("pipeline.strategies.horovod.step")


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
