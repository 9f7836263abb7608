"""Checkpoints without pickle: safetensors for tensors, JSON for numbers, one folder per step.

Every rank writes its own pieces of the state, and reads, under whatever layout, what it holds: no
rank needs memory for the whole model. So all nodes share the folder. It is written under a
temporary name, and rank 0 renames it when all ranks have written.

The SHA-256 of each file is compared before a checkpoint is used: a disk or a copy may damage what
was written whole. So the newest two of a run are kept, and the disk has three while one is written.

In a file a piece has the name of its tensor and where it begins: `weights/wte.weight@151,0`. The
launcher looks at checkpoints too, so torch is imported by what reads or writes tensors alone.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.errors import PeerError, SamestepError
from pipeline.files import sha256_of_file, to_disk
from pipeline.parallel.types import Shards, Whole

if TYPE_CHECKING:
    from torch import Tensor

KEPT = 2
"""Checkpoints of a run that stay: the newest, and the one before in case the newest is damaged."""

ABOUT = "state.json"
"""Step, owner and scalars; of each file its hash, of each tensor its shape, type and pieces."""

_NAME = re.compile(r"step-(\d{8,})")


def key(identity: str, manifest_sha256: str, network: str) -> str:
    """Owner of a checkpoint: a training, its tokens, and its network: a record tells of one."""
    return f"{identity}:{manifest_sha256}:{network}"


def save(
    folder: Path, step: int, shards: Shards, owner: str, *,
    rank: int = 0, size: int = 1, launch: str = "alone", agree: Callable[[bool], bool] = bool,
) -> None:  # fmt: skip
    """Write the state after `step` steps below `folder`, then drop all but the one before it.

    `owner` is a key, `launch` tells files from those of another start, `agree` is a `Trainable`'s.
    Collective over `size` ranks: it returns when the checkpoint is whole. Raises SamestepError
    where the disk refuses, PeerError where it did so on another rank; nothing is left then.
    """
    from safetensors import SafetensorError

    final = _folder(folder, step)
    # A name of this start alone: ranks of an earlier one may still be writing their own.
    temporary = folder / f".{final.name}.{launch}.tmp"

    def publish() -> None:
        """Give what all ranks have written its index and its name, and drop older ones."""
        about = {"step": step, "scalars": dict(shards.scalars), "owner": owner}
        about |= gather(temporary, size)
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

    error = error_of(lambda: write(temporary, rank, shards))
    all_wrote = agree(error is None)
    if all_wrote and rank == 0:
        error = error_of(publish)
    if all_wrote and agree(error is None):
        return
    if rank == 0:
        shutil.rmtree(temporary, ignore_errors=True)
    raise error or PeerError(f"another rank could not write its part of checkpoint {final}")


def write(folder: Path, rank: int, shards: Shards) -> None:
    """Write a rank's pieces as `rank<r>.safetensors`, and for rank 0 `rank<r>.json` of them.

    No tensors where it is the first to hold nothing. Raises OSError or SafetensorError.
    """
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    name = f"rank{rank}.safetensors"
    tensors: dict[str, Any] = {}
    for piece in shards.pieces:
        entry = {"shape": piece.shape, "dtype": str(piece.numbers.dtype)[6:], "pieces": []}
        tensors.setdefault(piece.name, entry)["pieces"].append(
            [name, piece.offsets, tuple(piece.numbers.shape)]
        )
    hashes = {}
    if tensors:
        save_file({_key(p.name, p.offsets): p.numbers for p in shards.pieces}, folder / name)
        to_disk(folder / name)
        # Of the file as it lies there, since that is what is compared before it is used.
        hashes[name] = sha256_of_file(folder / name)
    (folder / f"rank{rank}.json").write_text(json.dumps({"files": hashes, "tensors": tensors}))


def gather(folder: Path, num_ranks: int) -> dict[str, Any]:
    """Index of what all ranks wrote, for rank 0: hashes of `files`, and `tensors` in pieces.

    Drops what the ranks left for it. Raises SamestepError where a rank left nothing, or pieces do
    not make up their tensors.
    """
    files, tensors = dict[str, str](), dict[str, Any]()
    for rank in range(num_ranks):
        path = folder / f"rank{rank}.json"
        try:
            left = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise SamestepError(
                f"rank {rank} left no {path} that rank 0 sees; all nodes must share the results "
                "folder"
            ) from None
        path.unlink()
        files |= left["files"]
        for name, entry in left["tensors"].items():
            tensors.setdefault(name, entry | {"pieces": []})["pieces"] += entry["pieces"]
    for name, entry in tensors.items():
        written = sum(math.prod(shape) for _, _, shape in entry["pieces"])
        if written != math.prod(entry["shape"]):
            raise SamestepError(
                f"the ranks wrote {written} numbers of {name} of shape {entry['shape']}; each is "
                "to be written once, see `is_first_with` of the strategy's step"
            )
    return {"files": files, "tensors": tensors}


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


class Saved:
    """The state after `step` steps (a `SavedState`), which `fault` found good.

    Nothing is read before `read` asks for it.
    """

    def __init__(self, folder: Path, step: int) -> None:
        from safetensors import safe_open

        source = _folder(folder, step)
        about = json.loads((source / ABOUT).read_text())
        tensors = about["tensors"].items()
        self.scalars = dict[str, float](about["scalars"])
        self.wholes = {name: Whole(tuple(one["shape"]), one["dtype"]) for name, one in tensors}
        self.pieces = {name: one["pieces"] for name, one in tensors}
        """File of each box of a tensor, where it begins along each dim, and its shape."""
        self._file: Any = cache(lambda name: safe_open(source / name, "pt"))

    def read(self, name: str, offsets: Sequence[int], shape: Sequence[int]) -> Tensor:
        """A box of a tensor, on the host, from the pieces that overlap it."""
        import torch

        out = torch.empty(tuple(shape), dtype=getattr(torch, self.wholes[name].dtype))
        copied = 0
        for file, starts, lengths in self.pieces[name]:
            bounds = list(zip(offsets, shape, starts, lengths, strict=True))
            low = [max(begin, start) for begin, _, start, _ in bounds]
            high = [min(begin + n, start + m) for begin, n, start, m in bounds]
            # In part where another layout wrote it: its ranks cut the tensor elsewhere.
            if all(a < b for a, b in zip(low, high, strict=True)):
                target = out[_slices(low, high, offsets)]
                kept = self._file(file).get_slice(_key(name, starts))
                target.copy_(kept[_slices(low, high, starts)])
                copied += target.numel()
        assert copied == out.numel(), f"{copied} of {out.numel()} numbers of {name} are there"
        return out

    def close(self) -> None:
        """Let go of the files."""
        self._file.cache_clear()


def _key(name: str, offsets: Sequence[int]) -> str:
    return f"{name}@{','.join(map(str, offsets))}"


def _slices(low: Sequence[int], high: Sequence[int], origin: Sequence[int]) -> tuple[slice, ...]:
    return tuple(slice(a - o, b - o) for a, b, o in zip(low, high, origin, strict=True))


def _folder(folder: Path, step: int) -> Path:
    return folder / f"step-{step:08d}"


def _sha256(about: Mapping[str, Any]) -> str:
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
