"""States of a few tensors, as one rank would give them to a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from pipeline.parallel.types import Piece, SavedState, Shards


def shards_of(tensors: Mapping[str, Tensor], scalars: Mapping[str, float] | None = None) -> Shards:
    """Whole tensors by their names in a state."""
    pieces = [
        Piece(name, tuple(t.shape), (0,) * t.dim(), t.contiguous()) for name, t in tensors.items()
    ]
    return Shards(pieces, scalars or {})


def read_whole(state: SavedState, name: str) -> Tensor:
    """A tensor of a checkpoint."""
    shape = state.wholes[name].shape
    return state.read(name, [0] * len(shape), shape)
