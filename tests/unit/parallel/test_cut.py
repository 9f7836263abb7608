"""Parts of weights, and the layers that are made of them, in one process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F

from pipeline.parallel.tensor import first_row, own_rows
from tests.shards import Place, cuts


@pytest.mark.parametrize(("dim", "runs", "size"), [(0, 1, 4), (0, 3, 2), (1, 1, 3), (1, 3, 4)])
def test_parts_are_put_together_to_the_whole(monkeypatch, dim: int, runs: int, size: int) -> None:
    """Also where a rank gets one row more than another."""
    whole = torch.arange(15 * 18, dtype=torch.float32).view(15, 18)
    made = cuts(dim, whole.shape[dim], runs, size)
    parts = [cut.part(whole) for cut in made]
    assert sum(part.numel() for part in parts) == whole.numel()
    longest = max(part.shape[dim] for part in parts)

    def all_gather(gathered: list[Tensor], own: Tensor, ranks: object) -> None:
        for target, part in zip(gathered, parts, strict=True):
            assert target.shape == own.shape
            assert len(target) == longest
            target[: part.shape[dim]] = part.movedim(dim, 0)

    monkeypatch.setattr(dist, "all_gather", all_gather)
    for cut, part in zip(made, parts, strict=True):
        assert torch.equal(cut.whole(part), whole)


def test_a_fused_projection_is_cut_run_by_run() -> None:
    """Each rank has its heads of query, key and value."""
    fused = torch.tensor([10, 11, 20, 21, 30, 31])
    first, second = (cut.part(fused) for cut in cuts(0, 6, 3, 2))
    assert first.tolist() == [10, 20, 30]
    assert second.tolist() == [11, 21, 31]


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
    from pipeline.parallel.tensor import vocabulary_cross_entropy

    axis: Any = Alone()
    logits, targets = torch.randn(6, 9) * 30, torch.randint(0, 9, (6,))
    found = vocabulary_cross_entropy(logits, targets, axis, start=0)
    torch.testing.assert_close(found, F.cross_entropy(logits, targets))
