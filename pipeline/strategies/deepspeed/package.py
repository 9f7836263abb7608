"""DeepSpeed among ranks that torchrun started: is it usable here, and how it is imported."""

from __future__ import annotations

import importlib.metadata
import os
import sys
from typing import Any

OLDEST = (0, 19, 8)
"""Before, ZeRO-3 on Gloo waited for the last of several gathers only (pull request 8539)."""

INSTALL = (
    "DS_ACCELERATOR=cpu DS_BUILD_OPS=0 .venv/bin/pip install --no-build-isolation --no-deps "
    "--require-hashes -r envs/deepspeed.lock"
)


def why_unusable() -> str | None:
    """None where a version that is known to be right is installed, else the reason."""
    try:
        found = importlib.metadata.version("deepspeed")
    except importlib.metadata.PackageNotFoundError:
        return "not installed, an optional extra (docs/strategies.md)"
    numbers = tuple(int(part) for part in found.split("+")[0].split(".")[:3] if part.isdigit())
    if numbers < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        return f"version {found}, older than {oldest}, which reads weights before they are there"
    return None


def load(device: str) -> Any:
    """The package, with what it does at its start on a CPU held back.

    There it would compile an extension for collectives in shared memory, for minutes, and a process
    that is killed meanwhile leaves a lock on which later starts wait for ever. `LOCAL_SIZE`, which
    it reads as a sign of that extension's launcher, is unset. On GPUs it takes the one whose index
    is LOCAL_RANK, which is 0 on every node, also where nodes share a machine: it is told the one
    that this rank has.
    """
    if device == "cpu":
        os.environ["DS_ACCELERATOR"] = "cpu"
    else:
        import torch

        os.environ["LOCAL_RANK"] = str(torch.cuda.current_device())
    os.environ.pop("LOCAL_SIZE", None)
    import deepspeed

    # `import deepspeed.comm.torch as x` gives the torch library; the module is in sys.modules only.
    module: Any = sys.modules["deepspeed.comm.torch"]
    module.build_shm_op = lambda: None
    deepspeed.logger.setLevel("WARNING")
    return deepspeed
