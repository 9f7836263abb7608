"""Collectives of DeepSpeed's backend are phases; what does not send is not."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from pipeline.parallel.deepspeed.marked import mark
from pipeline.parallel.types import NOT_PROFILED, Phases


class _Heard(Phases):
    def __init__(self, said: list[str]) -> None:
        self.said = said

    @contextmanager
    def during(self, phase: str) -> Iterator[None]:
        self.said.append(f"begin {phase}")
        yield
        self.said.append(f"end {phase}")


class _Work:
    def __init__(self, said: list[str]) -> None:
        self.said = said

    def wait(self) -> None:
        self.said.append("waited")

    def is_completed(self) -> bool:
        return True


class _Backend:
    def __init__(self, said: list[str]) -> None:
        self.said = said

    def all_reduce(self, tensor: int, *, async_op: bool = False) -> _Work | None:
        self.said.append(f"all_reduce {tensor}")
        return _Work(self.said) if async_op else None

    def get_rank(self) -> int:
        return 3


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    said: list[str] = []
    module = SimpleNamespace(cdb=_Backend(said))
    monkeypatch.setitem(sys.modules, "deepspeed.comm.comm", module)
    return said


def test_a_collective_is_communication_from_its_call_to_its_end(said: list[str]) -> None:
    mark(_Heard(said))
    backend = sys.modules["deepspeed.comm.comm"].cdb
    assert backend.get_rank() == 3 and not said
    assert backend.all_reduce(7) is None
    assert said == ["begin communication", "all_reduce 7", "end communication"]


def test_one_under_way_is_waited_for_as_communication(said: list[str]) -> None:
    mark(_Heard(said))
    work = sys.modules["deepspeed.comm.comm"].cdb.all_reduce(7, async_op=True)
    said.clear()
    assert work.is_completed() and not said
    work.wait()
    assert said == ["begin communication", "waited", "end communication"]


def test_where_nobody_listens_the_backend_stays_as_it_is(said: list[str]) -> None:
    before = sys.modules["deepspeed.comm.comm"].cdb
    mark(NOT_PROFILED)
    assert sys.modules["deepspeed.comm.comm"].cdb is before
