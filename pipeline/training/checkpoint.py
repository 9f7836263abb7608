"""Checkpoints without pickle: safetensors for tensors, JSON for numbers, one folder per step.

Every rank writes its own pieces of the state, and reads, under whatever layout, what it holds: no
rank needs memory for the whole model. So all nodes share the folder. It is written under a
temporary name, and rank 0 renames it when all ranks have written.

The SHA-256 of each file is compared before a checkpoint is used: a disk or a copy may damage what
was written whole. So the newest two of a run are kept, and the disk has three while one is written.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from pipeline.errors import PeerError, SamestepError
from pipeline.files import sha256_of_file, to_disk
from pipeline.parallel.types import SavedState, Shards

KEPT = 2
"""Checkpoints of a run that stay: the newest, and the one before in case the newest is damaged."""

ABOUT = "state.json"
"""Step, owner and scalars; of each file its hash, of each tensor its shape, type and pieces."""

_NAME = re.compile(r"step-(\d{8,})")


def key(identity: str, manifest_sha256: str, network: str) -> str:
    """Owner of a checkpoint: a training, its tokens, and its network: a record tells of one."""
    return f"{identity}:{manifest_sha256}:{network}"


@dataclass(frozen=True)
class Writers:
    """The ranks that write a checkpoint together, of which this is number `rank`.

    `agree` is that of a `Trainable`; `launch` tells their files from those of another start.
    """

    rank: int = 0
    size: int = 1
    launch: str = "alone"
    agree: Callable[[bool], bool] = bool


ALONE = Writers()


def save(folder: Path, step: int, shards: Shards, owner: str, ranks: Writers = ALONE) -> None:
    """Write the state after `step` steps below `folder`, then drop all but the one before it.

    `owner` is a key. Collective: it returns when the checkpoint is whole. Raises SamestepError
    where the disk refuses, PeerError where it did so on another rank; nothing is left then.
    """
    from safetensors import SafetensorError

    from pipeline.training import shard_files

    final = _folder(folder, step)
    # A name of this start alone: ranks of an earlier one may still be writing their own.
    temporary = folder / f".{final.name}.{ranks.launch}.tmp"

    def publish() -> None:
        """Give what all ranks have written its index and its name, and drop older ones."""
        about = {"step": step, "scalars": dict(shards.scalars), "owner": owner}
        about |= shard_files.gather(temporary, ranks.size)
        (temporary / ABOUT).write_text(json.dumps(about | {"sha256": _sha256(about)}))
        # Without this the new name may reach the disk before what it names.
        to_disk(temporary / ABOUT)
        _remove(final)
        temporary.rename(final)
        before = (_folder(folder, number) for number in steps(folder) if number < step)
        ours = (one for one in before if (known := _about(one)) and known["owner"] == owner)
        kept = {final, *islice(ours, KEPT - 1)}
        for old in {*folder.glob("step-*"), *folder.glob(".step-*.tmp")} - kept:
            _remove(old)

    def error_of(work: Callable[[], None]) -> SamestepError | None:
        """The error of writing, to raise when all ranks know: else the others would wait for it."""
        try:
            work()
        except (OSError, SafetensorError) as error:
            return SamestepError(
                f"could not write checkpoint {final} ({error}); free space below the results "
                "folder or mend the disk"
            )
        except SamestepError as error:
            return error
        return None

    error = error_of(lambda: shard_files.write(temporary, ranks.rank, shards))
    all_wrote = ranks.agree(error is None)
    if all_wrote and ranks.rank == 0:
        error = error_of(publish)
    if all_wrote and ranks.agree(error is None):
        return
    if ranks.rank == 0:
        shutil.rmtree(temporary, ignore_errors=True)
    raise error or PeerError(f"another rank could not write its part of checkpoint {final}")


def steps(folder: Path) -> list[int]:
    """Steps done by the checkpoints below `folder`, whether good or not, the newest first."""
    names = (_NAME.fullmatch(path.name) for path in folder.glob("step-*"))
    return sorted((int(name[1]) for name in names if name), reverse=True)


def fault(folder: Path, step: int, owner: str) -> str | None:
    """Reason not to use the checkpoint of `step` for `owner` (a key); None where it is good."""
    source = _folder(folder, step)
    about = _about(source)
    if about is None or about["step"] != step:
        return f"its {ABOUT} is missing, damaged or of an earlier version"
    if about["owner"] != owner:
        *had, network = str(about["owner"]).split(":")
        *own, expected = owner.split(":")
        if had != own:
            return "it is of another training or other tokens"
        one = "a record is of one network"
        return f"it was made on {network} and this start has {expected}; {one}"
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


def load(folder: Path, step: int) -> SavedState:
    """The state after `step` steps, of which nothing is read yet; call `fault` before."""
    from pipeline.training.shard_files import SavedShards

    source = _folder(folder, step)
    return SavedShards(source, json.loads((source / ABOUT).read_text()))


def _folder(folder: Path, step: int) -> Path:
    return folder / f"step-{step:08d}"


def _sha256(about: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()


def _about(source: Path) -> dict[str, Any] | None:
    """Description in a checkpoint; None where it is missing or not as it was written."""
    try:
        about = json.loads((source / ABOUT).read_text(encoding="utf-8"))
        sha256 = about.pop("sha256")
    except (OSError, ValueError, RecursionError, AttributeError, TypeError, KeyError):
        return None
    whole = {*about} == {"step", "scalars", "owner", "files", "tensors"}
    return about if whole and _sha256(about) == sha256 else None


def _remove(path: Path) -> None:
    """Remove a folder, or what has taken its place."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
