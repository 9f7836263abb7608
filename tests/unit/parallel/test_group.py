"""Sums that are scattered over ranks, sent around a ring or all at once."""

from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from pipeline.machine.processes import Child
from pipeline.parallel.group import begin_reduce_scatter, ring_reduce_scatter


def scatter_both_ways(store: str, size: int, rank: int) -> int:
    """0 where this rank gets the same bits both ways, twice at once, of numbers that round."""
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    assert dist.group.WORLD is not None
    for dtype in (torch.float32, torch.bfloat16):
        torch.manual_seed(rank)
        wholes = torch.randn(2, size * 5).to(dtype)
        arriving = [begin_reduce_scatter(whole, dist.group.WORLD) for whole in wholes]
        for whole, arrived in zip(wholes, arriving, strict=True):
            if not torch.equal(arrived(), ring_reduce_scatter(whole, dist.group.WORLD)):
                return 1
    dist.barrier()
    return 0


@pytest.mark.parametrize("size", [2, 4])
def test_pieces_that_are_sent_at_once_add_up_to_the_bits_of_the_ring(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    work = partial(scatter_both_ways, str(tmp_path / "store"), size)
    ranks = [Child(partial(work, rank), at_exit=False) for rank in range(size)]
    assert [rank.wait() for rank in ranks] == [0] * size
