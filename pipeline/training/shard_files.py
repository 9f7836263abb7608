"""The files of a checkpoint: each rank writes its pieces, and reads of all files what it holds.

A rank leaves `rank<r>.safetensors`, none where it is the first to hold nothing, and for the root
`rank<r>.json` with what is in it. In a file a piece has the name of its tensor and where it begins:
`weights/wte.weight@151,0`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from pipeline.errors import SamestepError
from pipeline.files import sha256_of_file, to_disk
from pipeline.parallel.types import Shards, Whole


def write(folder: Path, rank: int, shards: Shards) -> None:
    """Write a rank's pieces below `folder`; raises OSError or SafetensorError."""
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
    """Index of what all ranks wrote, for the root: hashes of `files`, and `tensors` in pieces.

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
            known = tensors.setdefault(name, entry)
            if known is not entry:
                known["pieces"] += entry["pieces"]
    for name, entry in tensors.items():
        written = sum(math.prod(shape) for _, _, shape in entry["pieces"])
        if written != math.prod(entry["shape"]):
            raise SamestepError(
                f"the ranks wrote {written} numbers of {name} of shape {entry['shape']}; each is "
                "to be written once, see `is_first_with` of the strategy's step"
            )
    return {"files": files, "tensors": tensors}


class SavedShards:
    """A checkpoint's tensors (a `SavedState`), by what its `state.json` says of them.

    Nothing is read before `read` asks for it.
    """

    def __init__(self, folder: Path, about: Mapping[str, Any]) -> None:
        tensors = about["tensors"].items()
        self.scalars = dict[str, float](about["scalars"])
        self.wholes = {name: Whole(tuple(one["shape"]), one["dtype"]) for name, one in tensors}
        self.pieces = {name: one["pieces"] for name, one in tensors}
        """File of each box of a tensor, where it begins along each dim, and its shape."""
        self._file: Any = cache(lambda name: safe_open(folder / name, "pt"))

    def read(self, name: str, offsets: Sequence[int], shape: Sequence[int]) -> Tensor:
        """A box of a tensor, on the host, from the pieces that overlap it."""
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
