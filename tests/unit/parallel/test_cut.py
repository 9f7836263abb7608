"""Parts of weights, in one process."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from tests.shards import cuts


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
