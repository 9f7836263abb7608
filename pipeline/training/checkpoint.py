"""Checkpoints without pickle: safetensors for tensors, JSON for numbers, one folder a step.

A folder is written under a temporary name and renamed. It holds the SHA-256 of each of its files,
which is compared before a checkpoint is used: a disk or a copy may damage what was written whole.
So the newest two of a run are kept, and on the disk is room for three while one is written. Hashes
are taken of files in blocks, so that they need no memory besides the state itself.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from itertools import islice
from pathlib import Path
from typing import Any

from pipeline.errors import SamestepError
from pipeline.files import sha256_of_file, to_disk
from pipeline.parallel.types import TrainState

KEPT = 2
"""Checkpoints of a run that stay: the newest, and the one before in case the newest is damaged."""

WEIGHTS, OPTIMISER, ABOUT = "weights.safetensors", "optimiser.safetensors", "state.json"
_NAME = re.compile(r"step-(\d{8,})")


def key(identity: str, manifest_sha256: str, network: str) -> str:
    """What a checkpoint belongs to: a training (`RunSpec.identity`), its tokens and its network.

    A record tells of one network, so no run resumes on another one than it began on.
    """
    return f"{identity}:{manifest_sha256}:{network}"


def save(folder: Path, step: int, state: TrainState, owner: str) -> None:
    """Write the state after `step` steps below `folder`, then drop all but the one before it.

    `owner` is a key. Raises SamestepError where the disk refuses.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    final = _folder(folder, step)
    temporary = folder / f".{final.name}.{os.getpid()}.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir(parents=True)
        hashes = {}
        for name, tensors in ((WEIGHTS, state.weights), (OPTIMISER, state.optimiser)):
            save_file({k: v.contiguous() for k, v in tensors.items()}, temporary / name)
            hashes[name] = sha256_of_file(temporary / name)
        about = {"step": step, "scalars": dict(state.scalars), "owner": owner, "files": hashes}
        (temporary / ABOUT).write_text(json.dumps(about | {"sha256": _sha256(about)}))
        for file in temporary.iterdir():
            to_disk(file)
        _remove(final)
        temporary.rename(final)
        _drop_others(folder, step, owner)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise SamestepError(
            f"could not write checkpoint {final} ({error}); free space below the results folder"
        ) from error


def steps(folder: Path) -> list[int]:
    """Steps done by the checkpoints below `folder`, whether good or not, the newest first."""
    found = (_NAME.fullmatch(path.name) for path in folder.glob("step-*"))
    return sorted((int(match[1]) for match in found if match), reverse=True)


def fault(folder: Path, step: int, owner: str) -> str | None:
    """Why the checkpoint of `step` is not to be used by `owner` (a key); None where it is good."""
    source = _folder(folder, step)
    about = _about(source)
    if about is None or about["step"] != step:
        return f"its {ABOUT} is missing or damaged"
    if "files" not in about:
        return "it is of an earlier version and holds no hashes to check it by"
    if about["owner"] != owner:
        return _of_another(about["owner"], owner)
    for name, sha256 in about["files"].items():
        path = source / name
        if not path.is_file() or path.is_symlink():
            return f"its {name} is missing"
        if sha256_of_file(path) != sha256:
            return f"its {name} is damaged: it has another hash than when it was written"
    return None


def drop(folder: Path, step: int) -> None:
    """Remove the checkpoint of `step`."""
    _remove(_folder(folder, step))


def load(folder: Path, step: int) -> TrainState:
    """The state after `step` steps; look for its `fault` before."""
    from safetensors.torch import load_file

    source = _folder(folder, step)
    return TrainState(
        weights=load_file(source / WEIGHTS),
        optimiser=load_file(source / OPTIMISER),
        scalars=json.loads((source / ABOUT).read_text())["scalars"],
    )


def _folder(folder: Path, step: int) -> Path:
    return folder / f"step-{step:08d}"


def _sha256(about: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()


def _about(source: Path) -> dict[str, Any] | None:
    """What a checkpoint says of itself; None where that is missing or not as it was written.

    Those of earlier versions have neither `files` nor `sha256`.
    """
    try:
        found = json.loads((source / ABOUT).read_text(encoding="utf-8"))
        own = {"step", "scalars", "owner"}
        if {*found} == own:
            return dict(found)
        sha256 = found.pop("sha256")
    except (OSError, ValueError, RecursionError, AttributeError, TypeError, KeyError):
        return None
    whole = {*found} == own | {"files"} and _sha256(found) == sha256
    return found if whole else None


def _of_another(found: str, owner: str) -> str:
    """In what the keys differ."""
    *had, network = str(found).split(":")
    *own, expected = owner.split(":")
    if had == own:
        return f"it was made on {network} and this start has {expected}; a record is of one network"
    return "it is of another training or other tokens"


def _drop_others(folder: Path, step: int, owner: str) -> None:
    """Drop all besides the checkpoint of `step` and those before it of the same owner."""
    before = [number for number in steps(folder) if number < step]
    ours = (n for n in before if (about := _about(_folder(folder, n))) and about["owner"] == owner)
    kept = {_folder(folder, number) for number in (step, *islice(ours, KEPT - 1))}
    for old in (*folder.glob("step-*"), *folder.glob(".step-*.tmp")):
        if old not in kept:
            _remove(old)


def _remove(path: Path) -> None:
    """Remove a folder, or what has taken its place."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
