"""States of a few tensors, as one rank would give them to a checkpoint, and cuts without ranks."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from pipeline.parallel.cut import Cut
from pipeline.parallel.types import Piece, Shards


def shards_of(tensors: Mapping[str, Tensor], scalars: Mapping[str, float] | None = None) -> Shards:
    """Whole tensors by their names in a state."""
    pieces = [
        Piece(name, tuple(t.shape), (0,) * t.dim(), t.contiguous()) for name, t in tensors.items()
    ]
    return Shards(pieces, scalars or {})


class Place:
    """What a `Cut` asks of a process group."""

    def __init__(self, rank: int, size: int) -> None:
        self._rank, self._size = rank, size

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size


def cuts(dim: int, length: int, runs: int, size: int) -> list[Cut]:
    """The cut of a dim as each of `size` ranks has it."""
    places: list[Any] = [Place(rank, size) for rank in range(size)]
    return [Cut(dim, length, runs, place) for place in places]
