"""How far time is stretched, which cores a node gets, and which are kept awake."""

import os

import pytest

from pipeline.emulation import dilation
from pipeline.emulation.dilation import awake, dilate, pinned, places
from pipeline.study.spec import WorldSpec


def world(nodes: int, cores_per_node: int = 1, **more) -> WorldSpec:
    return WorldSpec(nodes, 1, "cpu", "gloo", "emulated", cores_per_node=cores_per_node, **more)


@pytest.mark.parametrize(
    ("nodes", "cores_per_node", "cores", "factor"),
    [
        (1, 1, 2, 1),
        (4, 1, 2, 3),
        (3, 1, 2, 3),  # two of them share a core
        (8, 1, 16, 1),
        (2, 4, 2, 5),
    ],
)
def test_every_node_counts_as_having_its_own_cores(nodes, cores_per_node, cores, factor) -> None:
    assert dilate(world(nodes, cores_per_node), cores) == factor
    dealt = places(nodes, cores_per_node, list(range(cores)))
    most = max(sum(core in place for place in dealt) for core in range(cores))
    # Where nodes share a core, it is idle for a fifth of the time even with all of them at work.
    busy = most * cores_per_node / min(cores_per_node, cores) / factor
    assert busy <= (1 if factor == 1 else 0.8)


def test_more_can_be_asked_for_but_not_less_nor_in_real_time(monkeypatch) -> None:
    monkeypatch.setenv("SAMESTEP_LEAST_DILATION", "8")
    assert dilate(world(2), 2) == 8
    assert dilate(world(2, real_time=True), 2) == 1
    monkeypatch.setenv("SAMESTEP_LEAST_DILATION", "2")
    assert dilate(world(8), 2) == 5


@pytest.mark.parametrize("yardstick", [None, True])
def test_all_node_counts_of_a_study_have_the_factor_of_the_largest(yardstick) -> None:
    most = dilate(world(8, yardstick=yardstick), 2)
    for nodes in (1, 2, 4):
        assert dilate(world(nodes, dilated_for=8, yardstick=yardstick), 2) == most


def test_nodes_are_dealt_out_over_the_cores_evenly() -> None:
    assert places(4, 1, [0, 1]) == [[0], [1], [0], [1]]
    assert places(2, 2, [4, 5, 6, 7]) == [[4, 5], [6, 7]]
    assert places(2, 4, [0, 1]) == [[0, 1], [0, 1]]


@pytest.mark.parametrize(("nodes", "factor"), [(1, 5), (2, 5), (4, 5), (8, 10)])
def test_with_a_yardstick_every_run_is_paced_and_cores_have_more_room(nodes, factor) -> None:
    assert dilate(world(nodes, yardstick=True), 2) == factor


def test_pinning_holds_for_a_while() -> None:
    before = os.sched_getaffinity(0)
    core = min(before)
    with pinned([core]):
        assert os.sched_getaffinity(0) == {core}
    assert os.sched_getaffinity(0) == before


def test_no_core_is_kept_awake_under_a_quota_which_that_would_use_up(monkeypatch) -> None:
    started: list[object] = []
    monkeypatch.setattr(dilation, "Child", lambda work, **_: started.append(work))
    monkeypatch.setattr(dilation, "cpu_quota", lambda: 2.0)
    with awake([0, 1]):
        assert not started
