"""The mesh of named axes: places, neighbours, and which sequences a rank reads."""

from dataclasses import replace

import pytest

from pipeline.errors import StudyError
from pipeline.parallel.mesh import Layout
from tests.parity.cases import Case

HYBRID = Layout((("pipeline", 2), ("data", 3), ("tensor", 2)), 4, "cuda", "nccl")
DATA = Layout((("data", 4),), 4, "cpu", "gloo")


def test_the_last_axis_varies_fastest() -> None:
    assert HYBRID.num_processes == 12
    assert HYBRID.coordinate(0) == {"pipeline": 0, "data": 0, "tensor": 0}
    assert HYBRID.coordinate(1) == {"pipeline": 0, "data": 0, "tensor": 1}
    assert HYBRID.coordinate(11) == {"pipeline": 1, "data": 2, "tensor": 1}
    assert list(HYBRID.coordinate(5)) == ["pipeline", "data", "tensor"]


def test_every_rank_has_a_place_of_its_own() -> None:
    assert len({tuple(HYBRID.coordinate(rank).values()) for rank in range(12)}) == 12
    for rank in (-1, 12):
        with pytest.raises(IndexError, match=f"rank {rank} is not one of 12"):
            HYBRID.coordinate(rank)


def test_ranks_along_an_axis_differ_on_it_alone() -> None:
    assert HYBRID.along("tensor", 4) == [4, 5]
    assert HYBRID.along("data", 1) == [1, 3, 5]
    assert HYBRID.along("pipeline", 9) == [3, 9]
    for axis, size in HYBRID.axes:
        groups = {tuple(HYBRID.along(axis, rank)) for rank in range(12)}
        assert len(groups) == 12 // size
        assert sorted(rank for group in groups for rank in group) == list(range(12))


def test_ranks_of_one_data_place_read_the_same_sequences() -> None:
    assert HYBRID.data_parallel == 3
    slices = [HYBRID.batch_slice(rank, 12) for rank in range(12)]
    assert slices == [(0, 4), (0, 4), (4, 8), (4, 8), (8, 12), (8, 12)] * 2
    with pytest.raises(StudyError, match="not a multiple of 3 data-parallel ranks"):
        HYBRID.batch_slice(0, 13)


def test_replicas_read_other_sequences_than_each_other() -> None:
    layout = Layout((("replica", 2), ("data", 3)), 3, "cpu", "gloo")
    assert layout.data_parallel == 6
    slices = [layout.batch_slice(rank, 12) for rank in range(6)]
    assert slices == [(start, start + 2) for start in range(0, 12, 2)]


def test_the_data_axis_and_the_devices_of_a_process_cut_the_batch() -> None:
    """Along other axes it is shared, so they need not divide it."""
    run = Case("ddp").spec(1)
    work = replace(run.workload, global_batch=6, accumulation_steps=2)
    HYBRID.check_batch(replace(run, workload=work))
    for layout in (DATA, replace(HYBRID, devices_per_process=2)):
        with pytest.raises(StudyError, match=r"global batch 6 is not data-parallel ranks\("):
            layout.check_batch(replace(run, workload=work))


def test_a_mesh_without_a_data_axis_reads_the_whole_batch() -> None:
    assert Layout((("tensor", 2),), 2, "cpu", "gloo").batch_slice(1, 8) == (0, 8)
