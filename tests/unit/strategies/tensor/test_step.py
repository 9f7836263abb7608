"""Layers that are made of parts of weights, in one process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from pipeline.strategies.tensor.step import first_row, own_rows, vocabulary_cross_entropy
from tests.shards import Place


def test_every_id_is_in_one_rank_s_rows() -> None:
    ids = torch.arange(10)
    places: list[Any] = [Place(rank, 4) for rank in range(4)]
    starts = [first_row(10, place) for place in places]
    assert starts == [0, 3, 6, 8]
    owned = [own_rows(ids, s, e - s)[0] for s, e in zip(starts, [*starts[1:], 10], strict=True)]
    assert torch.equal(torch.stack(owned).sum(dim=0), torch.ones(10, dtype=torch.int64))


class Alone:
    """A tensor axis of one rank."""

    def add(self, tensor: Tensor, *op: object) -> Tensor:
        return tensor

    total: Callable[[Any, Tensor], Tensor] = add


def test_the_loss_over_a_cut_vocabulary_is_cross_entropy() -> None:
    axis: Any = Alone()
    logits, targets = torch.randn(6, 9) * 30, torch.randint(0, 9, (6,))
    found = vocabulary_cross_entropy(axis, 0, logits, targets)
    torch.testing.assert_close(found, F.cross_entropy(logits, targets))
