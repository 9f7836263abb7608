"""One rank of a parameter server, without the others."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pipeline import strategies
from pipeline.parallel.group import Group
from pipeline.parallel.types import Batch, Parts
from pipeline.precision import make_precision
from pipeline.strategies.parameter_server.step import Star
from pipeline.study.spec import WorldSpec


def test_large_scaled_gradients_do_not_overflow_in_the_sum_of_a_root(monkeypatch) -> None:
    """Eight times 32,768 is more than float16 holds; their mean is not, nor is it with DDP.

    The root receives from each of the others what this rank has sent before.
    """
    sent: list[torch.Tensor] = []
    monkeypatch.setattr("torch.distributed.send", lambda flat, rank: sent.append(flat.clone()))
    monkeypatch.setattr("torch.distributed.recv", lambda into, rank: into.copy_(sent[0]))
    gradient = torch.full((3,), 32_768.0, dtype=torch.float16)
    model = SimpleNamespace(parameters=lambda: [SimpleNamespace(grad=gradient)])
    for is_root in (False, True):
        rank: Any = SimpleNamespace(is_root=is_root, model=model, group=SimpleNamespace(size=8))
        rank.precision = SimpleNamespace(reduced=None)
        Star.push(rank)
    assert gradient.tolist() == [32_768.0] * 3


class Model(torch.nn.Module):
    """Four weights; it writes down its passes, and what the rank then keeps besides."""

    def __init__(self, events: list[str]) -> None:
        super().__init__()
        self.weight, self.events = torch.nn.Parameter(torch.ones(4)), events
        any_weight: Any = self.weight
        any_weight.register_post_accumulate_grad_hook(lambda _: events.append("backward"))

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        self.events.append("forward")
        return (self.weight * inputs - targets).square()


PASSES = ["forward", "backward"] * 2
ORDERS = [
    (1, 0, ["send", "irecv", *PASSES, "wait"]),
    (1, 1, ["recv", "isend", *PASSES, "wait"]),
    (2, 0, ["irecv", "isend", *PASSES, "wait", "wait"]),
    (2, 1, ["isend", "irecv", *PASSES, "wait", "wait"]),
]
"""Staleness, rank, and the messages of a step of two micro-batches with those passes."""


@pytest.mark.parametrize(("staleness", "rank", "order"), ORDERS)
def test_late_messages_begin_before_the_passes_and_end_after(
    staleness: int, rank: int, order: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two ranks, of which the other sends ones; what waits meanwhile is what `plan` counts."""
    events: list[str] = []

    def message(way: str) -> Any:
        def begin(tensor: torch.Tensor, peer: int) -> Any:
            assert peer == 1 - rank
            events.append(way)
            if "recv" in way:
                tensor.fill_(1.0)
            return SimpleNamespace(wait=lambda: events.append("wait"))

        return begin

    for way in ("send", "recv", "isend", "irecv"):
        monkeypatch.setattr(f"torch.distributed.{way}", message(way))
    monkeypatch.setattr(Group, "join", lambda layout: Group(rank, 2))
    server = strategies.load("parameter_server", {"staleness": staleness})
    world = WorldSpec(1, 2, "cpu", "gloo", "loopback")
    model = Model(events)
    parts = Parts(
        model, lambda weights: torch.optim.SGD(weights, lr=1.0), server.layout(world),
        make_precision("fp32", "cpu"), 1e9,
    )  # fmt: skip
    built: Any = server.build(parts)
    pieces = [Batch(torch.ones(1, 4), torch.zeros(1, 4))] * 2
    built.step(pieces)
    assert model.weight.tolist() == [1.0] * 4, "the first step has no gradient to take"
    events.clear()
    model.register_forward_hook(lambda *_: kept.append(waiting(built)))
    kept: list[int] = []
    built.step(pieces)
    assert events == order
    spec: Any = SimpleNamespace(model=SimpleNamespace())
    monkeypatch.setattr("pipeline.models.num_parameters", lambda model: 4)
    footprint = server.footprint(spec, parts.layout, rank, 4 * 4)
    assert kept == [footprint.gathered_bytes] * 2


def waiting(late: Any) -> int:
    """Bytes that stay while the passes run."""
    kept = [late.late, *late.incoming, late.newest]
    return sum(tensor.nbytes for tensor in kept if tensor is not None)
