"""Whoever calls a collective, who listens is told of it; elsewhere torch is as it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional

from pipeline.parallel.collectives import collective, heard_by
from pipeline.parallel.types import NOT_PROFILED, Phases
from tests.ranks import group_alone


class Heard(Phases):
    """Keeps what it is told; within one context there is no other."""

    def __init__(self) -> None:
        self.seen: list[str] = []
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


@pytest.fixture(autouse=True)
def group() -> Iterator[None]:
    with group_alone():
        yield


def world() -> Any:
    return dist.group.WORLD


def heard_of(call: Any) -> list[str]:
    heard = Heard()
    with heard_by(heard):
        call()
    return heard.seen


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


def test_one_under_way_leaves_what_comes_before_its_end_alone() -> None:
    heard = Heard()
    with heard_by(heard):
        work: Any = dist.all_reduce(torch.ones(1), async_op=True)
        heard.seen.append("computes")
        work.wait()
    assert heard.seen == ["communication", "computes", "communication"]


def test_what_is_decorated_is_one_collective() -> None:
    @collective
    def twice() -> None:
        dist.all_reduce(torch.ones(1))
        dist.all_reduce(torch.ones(1))

    assert heard_of(twice) == ["communication"]


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
