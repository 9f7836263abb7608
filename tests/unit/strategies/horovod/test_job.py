from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.errors import LaunchError
from pipeline.machine import addresses as network
from pipeline.parallel.mesh import DATA, Layout
from pipeline.strategies.horovod import job


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No launcher's variables come in, none leak out."""
    before = dict(os.environ)
    for name in list(os.environ):
        if name.startswith(("HOROVOD_", "GLOO_")) or name in ("RANK", "WORLD_SIZE"):
            monkeypatch.delenv(name)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.mark.parametrize(
    ("running", "size", "variables", "said"),
    [
        (False, 2, {"WORLD_SIZE": "4"}, "started 4 ranks, the spec says 2"),
        (False, 2, {}, "no WORLD_SIZE in the environment, expected 2 ranks"),
        (False, 1, {}, None),
        (True, 2, {"HOROVOD_CYCLE_TIME": "5"}, None),
        (True, 2, {"HOROVOD_CYCLE_TIME": "1.0"}, r"HOROVOD_CYCLE_TIME=1\.0, given 5"),
        (True, 4, {"HOROVOD_CYCLE_TIME": "5"}, "came up with 2 ranks, the spec says 4"),
    ],
)
def test_another_job_than_the_spec_s_is_an_error_before_anyone_waits(
    monkeypatch: pytest.MonkeyPatch, running: bool, size: int, variables: Any, said: str | None
) -> None:
    begun: list[str] = []
    horovod = SimpleNamespace(
        is_initialized=lambda: running, size=lambda: 2 if running else 1,
        init=lambda: begun.append(os.environ["HOROVOD_CYCLE_TIME"]),
    )  # fmt: skip
    for name, module in (("horovod", SimpleNamespace(torch=horovod)), ("horovod.torch", horovod)):
        monkeypatch.setitem(sys.modules, name, module)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    layout = Layout(((DATA, size),), size, "cpu", "gloo")
    with nullcontext() if said is None else pytest.raises(LaunchError, match=said):
        job.join(layout, {"HOROVOD_CYCLE_TIME": "5"})
    assert begun == ["5"] * (said is None and not running)


class Store:
    """A launcher's key-value store in which the other ranks have written already."""

    def __init__(self, addresses: list[str]) -> None:
        self.values = {f"address{rank}": a.encode() for rank, a in enumerate(addresses)}

    def set(self, key: str, value: str) -> None:
        self.values[key] = value.encode()

    def get(self, key: str) -> bytes:
        return self.values[key]


ROUTES = {"master": "127.0.1.1", "10.0.0.2": "10.0.0.1"}


@pytest.mark.parametrize(
    ("others", "expected"),
    [(["", "127.0.0.1"], "127.0.1.1"), (["", "10.0.0.2"], "10.0.0.1")],
    ids=["one machine", "the master's name is a loopback on its own node"],
)
def test_a_loopback_is_taken_only_where_all_ranks_are_on_it(
    monkeypatch: pytest.MonkeyPatch, others: list[str], expected: str
) -> None:
    monkeypatch.setenv("MASTER_ADDR", "master")
    monkeypatch.setattr(network, "source_address", ROUTES.__getitem__)
    store: Any = Store(others)
    assert job._own_address(store, 0, 2) == expected


def test_gloo_uses_the_interface_that_torch_s_gloo_was_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib0")
    assert job._interface("127.0.0.1") == "ib0"
    monkeypatch.setenv("HOROVOD_GLOO_IFACE", "eth7")
    assert job._interface("127.0.0.1") == "eth7"
