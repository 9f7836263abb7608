"""The mean of float16 gradients over many ranks, of which this process is one: nothing is sent."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

from pipeline.strategies.sharded.step import shard
from tests.ranks import fake_group

GRADIENT = 20_000.0
"""Of a scaled loss; the largest float16 is 65,504."""
ROWS = 64


class Layer(nn.Module):
    """Gives each of its weights the gradient that it is fed."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(ROWS))

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.weight).sum()


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Layer()])

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.blocks[0](x)
        return out


@pytest.fixture(params=[2, 4, 8, 16, 32, 64])
def ranks(request: pytest.FixtureRequest) -> Iterator[int]:
    with fake_group(request.param) as size:
        yield size


def summed(whole: Tensor, ranks: int) -> Tensor:
    """This rank's piece of the sum over ranks that all have the same, one after the other."""
    piece = whole.chunk(ranks)[0]
    total = piece.clone()
    for _ in range(ranks - 1):
        total += piece
    return total


def test_large_gradients_are_divided_before_they_are_added_as_ddp_does(
    ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "pipeline.strategies.sharded.step.ring_reduce_scatter",
        lambda whole, group: summed(whole, ranks),
    )
    model, mesh = Model(), init_device_mesh("cpu", (ranks,))
    precision: Any = SimpleNamespace(narrow_weights=torch.float16, gradients=None, reduced=None)
    shard(model, mesh, precision, reshard=True, offload=False)
    model(torch.full((ROWS,), GRADIENT, dtype=torch.float16)).backward()
    parameter: Any = model.blocks[0].weight
    of_ddp = summed(torch.full((ROWS,), GRADIENT, dtype=torch.float16) / ranks, ranks)
    assert parameter.grad.to_local().tolist() == of_ddp.float().tolist()
