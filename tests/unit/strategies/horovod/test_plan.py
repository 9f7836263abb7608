"""Whether Horovod is usable here, and what is refused before a run."""

from __future__ import annotations

import importlib.util
import json
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from pipeline.errors import StudyError, UnsupportedError
from pipeline.strategies import load
from pipeline.strategies.horovod.plan import UNSUPPORTED_FILE, why_unusable
from pipeline.study.spec import WorldSpec


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
    assert why_unusable() is None


def test_a_horovod_for_another_torch_is_told_apart(packages: Path) -> None:
    install_horovod(packages, "2.12.0+cpu")
    reason = why_unusable()
    assert reason is not None
    assert "built for torch 2.12.0+cpu, but torch 2.13.0+cpu is installed" in reason


def test_the_reason_of_the_failed_build_is_passed_on(packages: Path) -> None:
    (packages / UNSUPPORTED_FILE).write_text("the compiler is too old\nlasting: x\n")
    with pytest.raises(UnsupportedError, match=r"not installed: the compiler is too old$"):
        load("horovod", {}).check()


def test_a_horovod_that_was_never_built_says_how_to(packages: Path) -> None:
    assert "never built here" in str(why_unusable())


def test_a_horovod_without_its_library_is_not_usable(packages: Path) -> None:
    install_horovod(packages, "2.13.0+cpu")
    next((packages / "horovod" / "torch").iterdir()).unlink()
    assert "without its torch library" in str(why_unusable())


def test_an_unknown_compression_is_named() -> None:
    world = WorldSpec(1, 2, "cpu", "gloo", "loopback")
    with pytest.raises(StudyError, match="'zip' is unknown; use one of none, fp16"):
        load("horovod", {"compression": "zip"}).layout(world)
