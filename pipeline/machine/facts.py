"""Versions, hardware and source of a run, for its record."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psutil

import pipeline
from pipeline.machine.control_groups import usable_cores

PACKAGES = ("torch", "numpy", "safetensors", "apex", "transformers", "tokenizers")


def loaded_versions(more: Iterable[str] = ()) -> dict[str, str]:
    """Versions of those of `PACKAGES` and `more` that this process has really imported."""
    versions = {"python": platform.python_version(), "samestep": pipeline.__version__}
    for name in (*PACKAGES, *more):
        if name in sys.modules:
            module = sys.modules[name]
            versions[name] = str(getattr(module, "__version__", None) or _installed(name))
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        versions["cuda"] = str(torch.version.cuda)
    return versions


def _installed(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def hardware() -> dict[str, Any]:
    """CPU model, usable cores, memory in bytes and the names of the GPUs (NVML)."""
    return {
        "cpu_model": cpu_model(),
        "num_cores": len(usable_cores()),
        "memory_bytes": psutil.virtual_memory().total,
        "gpus": _gpu_names(),
    }


def cpu_model() -> str:
    """The processor's name as the kernel tells it, else its architecture."""
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _gpu_names() -> list[str]:
    import pynvml

    def name(index: int) -> str:
        try:
            return str(pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(index)))
        except pynvml.NVMLError:  # of a device that this process may not use
            return "unknown"

    try:
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
    except pynvml.NVMLError:
        return []
    return [name(index) for index in range(count)]


def provenance() -> dict[str, Any]:
    """The source's commit, and whether it was changed since; None where git does not tell."""
    commit = _git("rev-parse", "HEAD")
    changes = _git("status", "--porcelain", "--untracked-files=no")
    return {
        "git_commit": commit,
        "git_dirty": None if commit is None or changes is None else bool(changes),
    }


def _git(*arguments: str) -> str | None:
    root = Path(__file__).resolve().parents[2]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        # In a container the checkout often belongs to another user than the one who runs. A copy
        # without a repository, within another one, is none of that one's commits.
        done = subprocess.run(
            ["git", "-c", "safe.directory=*", *arguments],
            cwd=root,
            env=kept | {"GIT_CEILING_DIRECTORIES": str(root.parent)},
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
