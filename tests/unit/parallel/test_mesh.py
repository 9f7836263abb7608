"""The mesh of named axes: places, neighbours, what cuts a batch, and a rank's parts as boxes."""

from dataclasses import replace
from itertools import product

import pytest
import torch
from torch import Tensor
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset
from torch.distributed.tensor.placement_types import _StridedShard

from pipeline.errors import StudyError
from pipeline.parallel.cut import NAME, ROWS_NAME, Box, Cut, RowRange, held, span, view
from pipeline.parallel.mesh import DATA, TENSOR, Layout
from tests.parity.cases import Case
from tests.shards import cuts

HYBRID = Layout((("pipeline", 2), ("data", 3), ("tensor", 2)), 4, "cuda", "nccl")
FOUR = Layout((("data", 4),), 4, "cpu", "gloo")


def test_ranks_along_an_axis_differ_on_it_alone() -> None:
    assert HYBRID.along("tensor", 4) == [4, 5]
    assert HYBRID.along("data", 1) == [1, 3, 5]
    assert HYBRID.along("pipeline", 9) == [3, 9]
    assert HYBRID.along("pipeline x tensor", 9) == [2, 3, 8, 9]
    for axis, size in HYBRID.axes:
        groups = {tuple(HYBRID.along(axis, rank)) for rank in range(12)}
        assert len(groups) == 12 // size
        assert sorted(rank for group in groups for rank in group) == list(range(12))


def test_a_ring_leaves_a_node_at_its_last_rank() -> None:
    """Four ranks a node: of two neighbours none leaves, of three data places one or two do."""
    assert not any(HYBRID.leaves_node(rank, HYBRID.along("tensor", rank)) for rank in range(12))
    crossing = [rank for rank in range(6) if HYBRID.leaves_node(rank, HYBRID.along("data", rank))]
    assert crossing == [2, 3, 4, 5]
    assert [HYBRID.leaves_node(3, pair) for pair in ((3, 4), (3, 0))] == [True, False]
    assert not Layout((("data", 1),), 1, "cpu", "gloo").leaves_node(0, [0])


def test_the_data_axis_and_the_devices_of_a_process_cut_the_batch() -> None:
    """Along other axes it is shared, so they need not divide it."""
    run = Case("ddp").spec(1)
    work = replace(run.workload, global_batch=6, accumulation_steps=2)
    HYBRID.check_batch(replace(run, workload=work))
    for layout in (FOUR, replace(HYBRID, devices_per_process=2)):
        with pytest.raises(StudyError, match=r"global batch 6 is not data-parallel ranks\("):
            layout.check_batch(replace(run, workload=work))


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
            view(times, box.offsets, box.shape).add_(1)
            view(again, box.offsets, box.shape).copy_(box.of(own.part))
    assert times.eq(1).all()
    assert torch.equal(again, whole)


@pytest.mark.parametrize("data", [1, 2, 3])
def test_rows_of_each_of_the_experts_of_a_rank_are_boxes_of_the_whole(data) -> None:
    """Of four experts over two ranks, of five rows each, which come first in a part."""
    whole = torch.arange(4 * 5 * 3.0).view(4, 5, 3)
    again = torch.full(whole.shape, -1.0)
    for cut, rank in product(cuts(0, 4, 1, 2), range(data)):
        experts, owner = cut.part(whole), like(cut)
        (start,), (count,) = span((5,), [Shard(0)], [data], [rank])
        setattr(owner, ROWS_NAME, RowRange(start, tuple(experts.shape), cut.ranks, dim=1))
        own = held(experts.movedim(1, 0)[start : start + count], owner)
        assert own.shape == whole.shape
        for box in own.boxes:
            place = view(again, box.offsets, box.shape)
            assert place.eq(-1).all()
            place.copy_(box.of(own.part))
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
