"""Bytes on the wire by hand, what the counter reads, and that every collective is heard."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional

from pipeline.cost.traffic import ring
from pipeline.errors import StrategyError
from pipeline.parallel.collectives import heard_by
from pipeline.parallel.counted import Counted, kind_of, wire_bytes
from pipeline.parallel.mesh import Layout
from pipeline.parallel.types import NOT_PROFILED, Phases
from pipeline.training.clock import Clock
from pipeline.training.phases import PhaseTimer
from tests.ranks import group_alone

GRID = Layout((("data", 2), ("tensor", 4)), 8, "cpu", "gloo")


def test_a_ring_of_four_sends_three_quarters_twice_in_an_all_reduce() -> None:
    assert ring(1000, 4) == 750
    assert wire_bytes("all_reduce", 1000, 4) == 1500
    assert wire_bytes("all_gather", 1000, 4) == 750
    assert wire_bytes("of the future", 1000, 2) is None


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("nccl:_all_gather_base", "all_gather"),
        ("nccl:_reduce_scatter_base", "reduce_scatter"),
        ("nccl:all_reduce_coalesced", "all_reduce"),
        ("nccl:allreduce_coalesced", "all_reduce"),
    ],
)
def test_kinds_have_one_name_for_all_backends(name: str, kind: str) -> None:
    assert kind_of(name) == kind


@pytest.mark.usefixtures("alone")
def test_an_exchange_is_counted_by_its_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 1 of two nodes of two ranks keeps its own; the recorder's entry is the same exchange."""
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "20")
    layout = Layout((("data", 1), ("expert", 4)), 2, "cpu", "gloo")
    monkeypatch.setattr(dist, "get_process_group_ranks", lambda group: [0, 1, 2, 3])
    counted = Counted(layout, 1)
    timer = PhaseTimer(Clock(torch.device("cpu")), counted)
    for pieces in ([1, 2, 3, 0], [], [1, 2, 3, 2]):
        with counted.step(), timer.during("communication"):
            counted.exchange(world(), torch.ones(8, 4), pieces)
            dist.all_to_all_single(torch.ones(8), torch.ones(8))
    found: Any = counted.summary()
    assert found["differing_steps"] == 2
    assert found["collectives"] == [
        {"kind": "all_to_all", "axis": "expert", "ranks": 4, "count": 1, "payload_bytes": 128,
         "wire_bytes": 16 * (1 + 3 + 2), "between_nodes_bytes": 16 * (3 + 2)}
    ]  # fmt: skip


@pytest.mark.usefixtures("alone")
def test_between_steps_a_rank_sends_a_few_numbers_and_no_gradients(monkeypatch) -> None:
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "20")
    monkeypatch.setattr(dist, "get_process_group_ranks", lambda group: [0, 1, 2, 3])
    monkeypatch.setattr(dist, "get_global_rank", lambda group, peer: peer)
    counted = Counted(GRID, 1)
    timer = PhaseTimer(Clock(torch.device("cpu")), counted)
    for _ in range(2):
        with counted.step(), timer.during("communication"):
            dist.all_reduce(torch.ones(1000))
        dist.all_reduce(torch.ones(2))
    found: Any = counted.summary()
    assert [one["payload_bytes"] for one in found["collectives"]] == [4000]
    counted.message("send", world(), [torch.ones(50)], 0)
    assert counted.summary() is not None
    counted.message("send", world(), [torch.ones(100)], 0)
    with pytest.raises(StrategyError, match="all_reduce and send of 616 bytes outside of 2 steps"):
        counted.summary()
    counted.start()
    with counted.step():
        pass
    dist.all_reduce(torch.ones(100))
    with pytest.raises(StrategyError, match="all_reduce of 400 bytes outside of 1 step,"):
        counted.summary()


def test_without_the_recorder_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "0")
    counted = Counted(GRID, 0)
    with counted.step():
        pass
    assert counted.summary() is None


class Heard(Phases):
    """Keeps what it is told; within one context there is no other."""

    def __init__(self) -> None:
        self.counted: Any = self
        self.seen: list[str] = []
        self.pieces: list[list[int]] = []
        self.within = False

    @contextmanager
    def during(self, phase: str) -> Iterator[None]:
        if not self.within:
            self.seen.append(phase)
        before, self.within = self.within, True
        yield
        self.within = before

    def message(self, way: str, group: Any, tensors: list[Any], peer: int) -> None:
        self.seen.append(f"{way} {peer}")

    def exchange(self, group: Any, tensor: Any, pieces: Any) -> None:
        self.pieces.append([len(tensor), *pieces])


@pytest.fixture
def alone() -> Iterator[None]:
    with group_alone():
        yield


def world() -> Any:
    return dist.group.WORLD


def heard_of(call: Any) -> list[str]:
    heard = Heard()
    with heard_by(heard):
        call()
    return heard.seen


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    "call",
    [
        lambda: dist.all_reduce(torch.ones(1)),
        lambda: dist.broadcast(torch.ones(1), 0),
        lambda: dist.all_gather_into_tensor(torch.ones(1), torch.ones(1)),
        lambda: dist.reduce_scatter_tensor(torch.ones(1), torch.ones(1)),
        lambda: dist.all_to_all_single(torch.ones(1), torch.ones(1)),
        lambda: dist.scatter(torch.ones(1), [torch.ones(1)]),
        lambda: dist.barrier(),
        lambda: functional.all_reduce(torch.ones(1), "sum", world()).trigger_wait(),
        lambda: functional.broadcast(torch.ones(1), 0, world()).trigger_wait(),
    ],
)
def test_a_collective_is_heard_when_it_starts_and_when_it_is_waited_for(call: Any) -> None:
    seen = heard_of(call)
    assert set(seen) == {"communication"} and len(seen) > 1


@pytest.mark.usefixtures("alone")
def test_an_exchange_tells_what_is_given_and_not_what_is_taken() -> None:
    heard = Heard()
    with heard_by(heard):
        dist.all_to_all_single(torch.ones(3), torch.ones(3), [3], [3])
        dist.all_to_all_single(torch.ones(2), torch.ones(2))
    assert heard.pieces == [[3, 3], [2]]


@pytest.mark.usefixtures("alone")
def test_one_under_way_leaves_what_comes_before_its_end_alone() -> None:
    heard = Heard()
    with heard_by(heard):
        work: Any = dist.all_reduce(torch.ones(1), async_op=True)
        heard.seen.append("computes")
        work.wait()
    assert heard.seen == ["communication", "computes", "communication"]


@pytest.mark.usefixtures("alone")
def test_a_message_is_named_and_nothing_is_heard_elsewhere(monkeypatch: Any) -> None:
    heard = Heard()
    sent: list[int] = []
    monkeypatch.setattr(dist.ProcessGroup, "send", lambda self, tensors, to, tag: sent.append(to))
    original = vars(dist.ProcessGroup)["send"]
    with heard_by(heard):
        world().send([torch.ones(1)], 3, 0)
    assert (heard.seen, sent) == (["send 3", "communication"], [3])
    with heard_by(NOT_PROFILED):
        assert vars(dist.ProcessGroup)["send"] is original
    world().send([torch.ones(1)], 3, 0)
    assert len(heard.seen) == 2 and vars(dist.ProcessGroup)["send"] is original
