"""A stream of tokens as files of bounded size, hashed while they are written."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pipeline.corpus.manifest import Shard

SHARD_TOKENS = 2**24


def smallest_dtype(vocab_size: int) -> str:
    """`uint16` where every id fits, else `uint32`; files are little-endian."""
    return "uint16" if vocab_size <= 2**16 else "uint32"


def write_shards(
    folder: Path,
    dtype: str,
    arrays: Iterable[npt.NDArray[np.unsignedinteger]],
    shard_tokens: int = SHARD_TOKENS,
) -> list[Shard]:
    """Write arrays of tokens, shape (n,), one after another to `shard-00000.bin` and so on.

    Every shard but the last holds `shard_tokens` tokens of the type `dtype`, a name.
    """
    shards: list[Shard] = []
    stored, filled = np.dtype(dtype).newbyteorder("<"), (one for one in arrays if len(one))
    tokens = next(filled, None)
    while tokens is not None:
        name, digest, room = f"shard-{len(shards):05d}.bin", hashlib.sha256(), shard_tokens
        with (folder / name).open("wb") as stream:
            while room and tokens is not None:
                data = tokens[:room].astype(stored, copy=False).tobytes()
                stream.write(data)
                digest.update(data)
                rest, room = tokens[room:], max(0, room - len(tokens))
                tokens = rest if len(rest) else next(filled, None)
        shards.append(Shard(name, shard_tokens - room, digest.hexdigest()))
    return shards
