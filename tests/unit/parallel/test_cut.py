"""Parts of a rank as boxes of the whole: all ranks together cover each number once."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset
from torch.distributed.tensor.placement_types import _StridedShard

from pipeline.parallel.cut import NAME, ROWS_NAME, Box, Cut, RowRange, held, span
from pipeline.parallel.mesh import DATA, TENSOR
from tests.shards import cuts


def like(cut: Cut) -> Tensor:
    owner = torch.empty(0)
    setattr(owner, NAME, cut)
    return owner


CUTS = [(0, 1, 4), (0, 3, 2), (1, 1, 4), (1, 3, 4), (0, 5, 4)]


@pytest.mark.parametrize(("dim", "runs", "size"), CUTS)
@pytest.mark.parametrize("data", [0, 1, 2, 4])
def test_the_boxes_of_all_ranks_are_the_whole(dim, runs, size, data) -> None:
    """Of parts along a tensor axis; over `data` ranks, if any, ZeRO's stage 1 cuts rows of them.

    Also where ranks do not divide a run, or there are more of them than it has rows.
    """
    whole = torch.arange(15 * 18.0).view(15, 18)
    times, again = torch.zeros(15, 18), torch.full((15, 18), -1.0)
    for cut, rank in product(cuts(dim, whole.shape[dim], runs, size), range(data or 1)):
        part, owner = cut.part(whole), like(cut)
        if data:
            (start, _), (count, _) = span(part.shape, [Shard(0)], [data], [rank])
            setattr(owner, ROWS_NAME, RowRange(start, tuple(part.shape), cut.ranks))
            part = part[start : start + count]
        own = held(part, owner)
        assert own.shape == (15, 18) and own.axes == ({TENSOR, DATA} if data else {TENSOR})
        for box in own.boxes:
            place = tuple(slice(o, o + n) for o, n in zip(box.offsets, box.shape, strict=True))
            times[place] += 1
            again[place] = box.of(own.part)
    assert times.eq(1).all()
    assert torch.equal(again, whole)


@pytest.mark.parametrize("shape", [(7, 5), (8, 4), (2, 3), (1, 1), (9,)])
@pytest.mark.parametrize("mesh", [(4,), (2, 2), (2, 3), (2, 2, 2)])
def test_the_part_of_a_dtensor_is_where_torch_has_it(shape, mesh) -> None:
    """One dim may be cut by several axes, and ranks may get nothing."""
    choices = [Replicate(), *(Shard(dim) for dim in range(len(shape)))]
    for placements in product(choices, repeat=len(mesh)):
        for place in product(*(range(size) for size in mesh)):
            offsets, own = span(shape, placements, mesh, place)
            expected, start = _compute_local_shape_and_global_offset(
                shape, mesh, list(place), placements
            )
            assert own == tuple(expected)
            if 0 not in own:
                assert offsets == tuple(start)


def test_another_cut_than_into_boxes_is_refused() -> None:
    with pytest.raises(TypeError, match="expected Shard or Replicate"):
        span((8, 8), [_StridedShard(0, split_factor=2)], [2], [0])


def test_a_scalar_is_whole_on_every_rank() -> None:
    own = held(torch.tensor(3.0), like(cuts(0, 6, 1, 2)[1]))
    assert (own.shape, own.boxes, own.axes) == ((), (Box((), (), ()),), frozenset())


def test_a_fused_projection_is_cut_run_by_run() -> None:
    """Each rank has its heads of query, key and value."""
    fused = torch.tensor([10, 11, 20, 21, 30, 31])
    first, second = (cut.part(fused) for cut in cuts(0, 6, 3, 2))
    assert first.tolist() == [10, 20, 30]
    assert second.tolist() == [11, 21, 31]
