from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import LaunchError, StudyError, UnsupportedError
from pipeline.machine import addresses as network
from pipeline.parallel.mesh import DATA, Layout
from pipeline.strategies import load
from pipeline.strategies.horovod import job
from pipeline.study.spec import WorldSpec


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


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose `torch` and `horovod` are the only ones that are found."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "version.py").write_text("__version__ = '2.13.0+cpu'\n")

    def find(name: str) -> ModuleSpec | None:
        origin = tmp_path / name / "__init__.py"
        return ModuleSpec(name, None, origin=str(origin)) if origin.parent.is_dir() else None

    monkeypatch.setattr(importlib.util, "find_spec", find)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    return tmp_path


def install_horovod(packages: Path, torch: str) -> None:
    (packages / "horovod" / "torch").mkdir(parents=True)
    (packages / "horovod" / "torch" / "mpi_lib_v2.cpython-311.so").touch()
    (packages / "horovod" / "metadata.json").write_text(json.dumps({"pytorch": torch}))


def test_a_horovod_for_this_torch_is_usable(packages: Path) -> None:
    install_horovod(packages, "2.13.0+cpu")
    assert job.why_unusable() is None


def test_a_horovod_for_another_torch_is_told_apart(packages: Path) -> None:
    install_horovod(packages, "2.12.0+cpu")
    reason = job.why_unusable()
    assert reason is not None
    assert "built for torch 2.12.0+cpu, but torch 2.13.0+cpu is installed" in reason


def test_the_reason_of_the_failed_build_is_passed_on(packages: Path) -> None:
    (packages / job.UNSUPPORTED_FILE).write_text("the compiler is too old\nlasting: x\n")
    with pytest.raises(UnsupportedError, match=r"not installed: the compiler is too old$"):
        load("horovod", {}).check()


def test_a_horovod_that_was_never_built_says_how_to(packages: Path) -> None:
    assert "never built here" in str(job.why_unusable())


def test_a_horovod_without_its_library_is_not_usable(packages: Path) -> None:
    install_horovod(packages, "2.13.0+cpu")
    next((packages / "horovod" / "torch").iterdir()).unlink()
    assert "without its torch library" in str(job.why_unusable())


@pytest.mark.parametrize("variable", ["WORLD_SIZE", "HOROVOD_SIZE"])
def test_another_world_than_the_spec_s_is_an_error_before_anyone_waits(
    monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "2")
    job._check_size(layout(2))
    with pytest.raises(LaunchError, match="started 2 ranks, the spec says 4"):
        job._check_size(layout(4))


def test_no_launcher_is_an_error_for_more_than_one_rank() -> None:
    job._check_size(layout(1))
    with pytest.raises(LaunchError, match="expected 2 ranks"):
        job._check_size(layout(2))


def test_an_unknown_compression_is_named() -> None:
    world = WorldSpec(1, 2, "cpu", "gloo", "loopback")
    with pytest.raises(StudyError, match="'zip' is unknown; use one of none, fp16"):
        load("horovod", {"compression": "zip"}).layout(world)


def test_settings_of_a_running_job_cannot_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOROVOD_CYCLE_TIME", "1.0")
    job._check_settings({"HOROVOD_CYCLE_TIME": "1.0"})
    with pytest.raises(LaunchError, match=r"HOROVOD_CYCLE_TIME=1\.0, given 5"):
        job._check_settings({"HOROVOD_CYCLE_TIME": "5"})


class Store:
    """A launcher's key-value store in which the other ranks have written already."""

    def __init__(self, addresses: list[str]) -> None:
        self.values = {f"b/address{rank}": a.encode() for rank, a in enumerate(addresses)}

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
    assert job._own_address(job._Blackboard(store, "b"), 0, 2) == expected


def test_gloo_uses_the_interface_that_torch_s_gloo_was_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib0")
    assert job._interface("127.0.0.1") == "ib0"
    monkeypatch.setenv("HOROVOD_GLOO_IFACE", "eth7")
    assert job._interface("127.0.0.1") == "eth7"
