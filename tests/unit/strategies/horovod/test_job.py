from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from pipeline.errors import LaunchError
from pipeline.machine import addresses as network
from pipeline.parallel.mesh import DATA, Layout
from pipeline.strategies.horovod import job


def layout(num_processes: int) -> Layout:
    return Layout(((DATA, num_processes),), num_processes, "cpu", "gloo")


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


def test_another_world_than_the_spec_s_is_an_error_before_anyone_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    job._check_size(layout(2))
    with pytest.raises(LaunchError, match="started 2 ranks, the spec says 4"):
        job._check_size(layout(4))


def test_no_launcher_is_an_error_for_more_than_one_rank() -> None:
    job._check_size(layout(1))
    with pytest.raises(LaunchError, match="expected 2 ranks"):
        job._check_size(layout(2))


def test_settings_of_a_running_job_cannot_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOROVOD_CYCLE_TIME", "1.0")
    job._check_settings({"HOROVOD_CYCLE_TIME": "1.0"})
    with pytest.raises(LaunchError, match=r"HOROVOD_CYCLE_TIME=1\.0, given 5"):
        job._check_settings({"HOROVOD_CYCLE_TIME": "5"})


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
