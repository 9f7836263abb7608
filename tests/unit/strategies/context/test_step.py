"""Pieces of sequences on a context axis, without ranks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pipeline.strategies.context.step import ContextAxis, later
from pipeline.strategies.tensor.step import TensorAxis


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_pieces_come_back_in_the_order_of_the_sequence(monkeypatch, size: int) -> None:
    """A rank gets the sums of its own pieces, an early and a late one."""
    whole = torch.arange(2 * 24 * 3).view(2, 24, 3)
    groups: list[Any] = [
        SimpleNamespace(rank=lambda rank=rank: rank, size=lambda: size) for rank in range(size)
    ]
    axes = [ContextAxis(group) for group in groups]
    parts = [axis.own(whole) for axis in axes]
    monkeypatch.setattr(TensorAxis, "gather", lambda self, part: torch.cat(parts, dim=1))
    monkeypatch.setattr(
        TensorAxis, "scatter", lambda self, x: x.chunk(size, dim=1)[self.ranks.rank()]
    )
    for axis, part in zip(axes, parts, strict=True):
        assert axis.gather(part).equal(whole)
        assert axis.scatter(whole).equal(part)
        assert sum(axis.pieces) == 2 * size - 1, "equal work under the causal mask"


def test_a_mask_hides_later_positions_alone() -> None:
    mask = later(2, 4, torch.float32, torch.device("cpu"))
    assert mask.tolist() == [[0, 0, 0, -torch.inf], [0, 0, 0, 0]]
