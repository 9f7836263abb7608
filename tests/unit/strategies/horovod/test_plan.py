"""Whether Horovod is usable here, and what is refused before a run."""

from __future__ import annotations

import importlib.util
import json
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from pipeline.errors import LaunchError, UnsupportedError
from pipeline.strategies import load
from pipeline.strategies.horovod.plan import TUNED_POINTS, UNSUPPORTED_FILE, settled, why_unusable


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


def test_only_a_horovod_of_this_torch_is_usable(packages: Path) -> None:
    assert "never built here" in str(why_unusable())
    install_horovod(packages, "2.13.0+cpu")
    assert why_unusable() is None
    recorded = packages / "horovod" / "metadata.json"
    recorded.write_text(recorded.read_text().replace("2.13", "2.12"))
    other = "built for torch 2.12.0+cpu, but torch 2.13.0+cpu is installed"
    assert other in str(why_unusable())
    next((packages / "horovod" / "torch").iterdir()).unlink()
    assert "without its torch library" in str(why_unusable())


def test_the_reason_of_the_failed_build_is_passed_on(packages: Path) -> None:
    (packages / UNSUPPORTED_FILE).write_text("the compiler is too old\nlasting: x\n")
    with pytest.raises(UnsupportedError, match=r"not installed: the compiler is too old$"):
        load("horovod", {}).check()


@pytest.mark.parametrize("left", [b"", b"\xff\n", b"\0" * 9])
def test_what_a_disk_emptied_is_a_reason_too(packages: Path, left: bytes) -> None:
    (packages / UNSUPPORTED_FILE).write_bytes(left)
    assert str(why_unusable()).startswith("not installed: ")
    install_horovod(packages, "2.13.0+cpu")
    (packages / "horovod/metadata.json").write_bytes(left or b"[]")
    assert "built for torch unknown" in str(why_unusable())


HEAD = (
    "hierarchical_allreduce,hierarchical_allgather,torus_allreduce,cache_enabled,"
    "cycle_time_ms,tensor_fusion_threshold,score"
)
"""As Horovod 0.28.1 writes it."""


def test_the_last_row_of_a_finished_search_is_what_horovod_keeps() -> None:
    best = "0,0,0, 1,3.29399,41.5908,33.002"
    rows = [HEAD, best, *["0,0,0, 1,50,32,2.5"] * (TUNED_POINTS - 1), best]
    found = settled("\n".join(rows), dilation=2.0)
    assert found == {"cycle_time_ms": 1.646995, "fusion_threshold_mb": 41.5908, "points": 21}
    with pytest.raises(LaunchError, match=r"tried 21 of 21 points .*; raise workload.untimed_ste"):
        settled("\n".join(rows[:-1]), dilation=2.0)
