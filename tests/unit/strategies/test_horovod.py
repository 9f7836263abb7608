"""Whether Horovod is usable here, and what is refused before a run."""

from __future__ import annotations

import importlib.util
import json
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from pipeline.errors import UnsupportedError
from pipeline.strategies import load
from pipeline.strategies.horovod.plan import UNSUPPORTED_FILE, why_unusable


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
