"""Checkpoints without pickle: safetensors for tensors, JSON for numbers, one folder a step.

A folder is written under a temporary name and renamed, so the newest one is always whole.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from pipeline.errors import SamestepError
from pipeline.files import to_disk
from pipeline.parallel.types import TrainState


def key(identity: str, manifest_sha256: str) -> str:
    """What a checkpoint belongs to: a training (`RunSpec.identity`) and the tokens that it read."""
    return f"{identity}:{manifest_sha256}"


def save(folder: Path, step: int, state: TrainState, owner: str) -> None:
    """Write the state after `step` steps below `folder`, then drop all others; `owner` is a key."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    final = folder / f"step-{step:08d}"
    temporary = folder / f".{final.name}.{os.getpid()}.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        save_file(
            {k: v.contiguous() for k, v in state.weights.items()}, temporary / "weights.safetensors"
        )
        save_file(
            {k: v.contiguous() for k, v in state.optimiser.items()},
            temporary / "optimiser.safetensors",
        )
        about = {"step": step, "scalars": dict(state.scalars), "owner": owner}
        (temporary / "state.json").write_text(json.dumps(about))
        for file in temporary.iterdir():
            to_disk(file)
        shutil.rmtree(final, ignore_errors=True)
        temporary.rename(final)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise SamestepError(
            f"could not write checkpoint {final} ({error}); free space below the results folder"
        ) from error
    for old in (*folder.glob("step-*"), *folder.glob(".step-*.tmp")):
        if old != final:
            shutil.rmtree(old)


def latest_step(folder: Path, owner: str) -> int:
    """Steps done by the checkpoint of this very spec and these tokens; 0 where there is none."""
    found = sorted(folder.glob("step-*/state.json"))
    if not found:
        return 0
    about = json.loads(found[-1].read_text())
    return int(about["step"]) if about["owner"] == owner else 0


def load(folder: Path, step: int) -> TrainState:
    """The state after `step` steps."""
    from safetensors.torch import load_file

    source = folder / f"step-{step:08d}"
    about = json.loads((source / "state.json").read_text())
    return TrainState(
        weights=load_file(source / "weights.safetensors"),
        optimiser=load_file(source / "optimiser.safetensors"),
        scalars=about["scalars"],
    )
