"""Write a stream of tokens as files of bounded size, hashing while writing."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from pipeline.corpus.manifest import Shard

SHARD_TOKENS = 2**24


def smallest_dtype(vocab_size: int) -> str:
    """`uint16` where every id fits, else `uint32`; files are little-endian."""
    return "uint16" if vocab_size <= 2**16 else "uint32"


class ShardWriter:
    """Append tokens to `shard-00000.bin`, `shard-00001.bin`, ... below `folder`.

    Every shard but the last holds `shard_tokens` tokens. Use as a context manager; `shards` is
    complete once it is left.
    """

    def __init__(self, folder: Path, dtype: str, shard_tokens: int = SHARD_TOKENS) -> None:
        """`dtype` is a name of `smallest_dtype`; `folder` exists."""
        self.shards: list[Shard] = []
        self._folder, self._shard_tokens = folder, shard_tokens
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self._stream: BinaryIO | None = None
        self._digest, self._num_tokens = hashlib.sha256(), 0

    def append(self, tokens: npt.NDArray[np.unsignedinteger]) -> None:
        """Write `tokens`, shape (n,), opening further shards as they fill."""
        while len(tokens):
            if self._stream is None:
                self._stream = (self._folder / self._name()).open("wb")
            room = self._shard_tokens - self._num_tokens
            data = tokens[:room].astype(self._dtype, copy=False).tobytes()
            self._stream.write(data)
            self._digest.update(data)
            self._num_tokens += min(room, len(tokens))
            tokens = tokens[room:]
            if self._num_tokens == self._shard_tokens:
                self._finish()

    def __enter__(self) -> ShardWriter:
        """Ready to append."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close the last shard."""
        self._finish()

    def _name(self) -> str:
        return f"shard-{len(self.shards):05d}.bin"

    def _finish(self) -> None:
        if self._stream is None:
            return
        self._stream.close()
        self.shards.append(Shard(self._name(), self._num_tokens, self._digest.hexdigest()))
        self._stream, self._digest, self._num_tokens = None, hashlib.sha256(), 0
