"""Shards to batches: the batch of a step is a pure function of (manifest, seed, step).

Window i is tokens [i * context, i * context + context] of the corpus; `objectives.py` makes inputs
and targets of it. Windows come in a new order each epoch, and step t takes the positions
t * global_batch onwards of the endless sequence of epochs. Neither strategy nor world size enters,
so every cell of a study sees the same sequences at the same step.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.corpus.manifest import TOKENIZER_FILE, Manifest
from pipeline.corpus.objectives import (
    Arrays,
    Causal,
    Masked,
    NextSentence,
    Objective,
    Tokens,
    Words,
)
from pipeline.documents import read_document
from pipeline.errors import CorpusError
from pipeline.schemas import AGAIN
from pipeline.study.spec import ObjectiveSpec

MAX_OPEN_SHARDS = 128
"""Shards that are mapped at a time: each holds a file descriptor, and 1,024 is a usual limit."""


class Batches:
    """Batches of `global_batch` windows of `context` tokens from the shards in `folder`."""

    def __init__(
        self, folder: Path, context: int, global_batch: int, seed: int,
        objective: ObjectiveSpec | None = None,
    ) -> None:  # fmt: skip
        """Raises CorpusError where the shards do not match their manifest or are too few.

        Without `objective` it is the causal one.
        """
        self.manifest = Manifest.load(folder)
        self.context, self.global_batch, self.seed = context, global_batch, seed
        self._shapes = {(context, global_batch): self}
        self.num_windows = (self.manifest.num_tokens - 1) // context
        self._folder = folder
        self._shard = lru_cache(maxsize=MAX_OPEN_SHARDS)(self._map)
        # The position of each shard's first token in the corpus.
        lengths = [shard.num_tokens for shard in self.manifest.shards]
        self._starts = np.cumsum([0, *lengths[:-1]], dtype=np.int64)
        if self.num_windows < global_batch:
            raise CorpusError(
                f"{folder}: {self.manifest.num_tokens} tokens are {self.num_windows} windows of "
                f"{context}; expected at least the global batch {global_batch}, lower "
                "workload.global_batch or model.context, or use a larger corpus"
            )
        self._spec, self.objective = objective, self._objective(objective)

    def of(self, context: int, global_batch: int) -> Batches:
        """Batches of another shape, whose windows have an order of their own."""
        shape = context, global_batch
        if shape not in self._shapes:
            self._shapes[shape] = Batches(self._folder, *shape, self.seed, self._spec)
        return self._shapes[shape]

    def indices(self, step: int) -> Tokens:
        """The windows of the global batch of `step` (from 0), shape (global_batch,)."""
        return self._windows(step, 0, self.global_batch)

    def slice(self, step: int, start: int, stop: int) -> Arrays:
        """Sequences [start, stop) of the global batch of `step`, and only these, from disk."""
        windows = self._windows(step, start, stop)
        if self.objective.pairs:
            windows = np.concatenate([windows, self._windows(step, start, stop, order=1)])
        read = np.stack([self._read(int(window)) for window in windows])
        return self.objective(read, self.seed, step, start)

    def unigram_entropy(self, first: int, stop: int) -> float | None:
        """Entropy in nats of the tokens that steps [first, stop) predict, each by its frequency.

        None after the first epoch, when earlier steps had the same text.
        """
        if stop * self.global_batch > self.num_windows:
            return None
        counts = np.zeros(self.manifest.vocab_size, dtype=np.int64)
        for window in (window for step in range(first, stop) for window in self.indices(step)):
            counts += np.bincount(self._read(int(window))[1:], minlength=len(counts))
        shares = counts[counts > 0] / counts.sum()
        return float(-(shares * np.log(shares)).sum())

    def _objective(self, spec: ObjectiveSpec | None) -> Objective:
        """The objective for these tokens; raises CorpusError for a special token that text has."""
        if spec is None or spec.kind == "causal":
            return Causal(self.manifest.separator_id if spec else None)
        path, again = self._folder / TOKENIZER_FILE, AGAIN["manifest"]
        about = read_document(path, "tokeniser", CorpusError, again, printable=False)
        special = {token["id"] for token in about["added_tokens"] if token["special"]}
        special |= {self.manifest.separator_id}
        for name, token in spec.tokens.items():
            if token < self.manifest.vocab_size and token not in special:
                raise CorpusError(
                    f"objective.{name} {token} is an ordinary token of the tokeniser; use a "
                    f"special one, or from {self.manifest.vocab_size} up to model.vocab_size - 1 "
                    "one that it never makes"
                )
        special |= {*spec.tokens.values()}
        words = None
        if spec.whole_words:
            listed = about["model"]["vocab"]
            if isinstance(listed, list):  # with scores, as those of Unigram
                listed = {token: number for number, (token, _) in enumerate(listed)}
            ordinary = {token: n for token, n in listed.items() if n not in special}
            size = max([self.manifest.vocab_size, *(one + 1 for one in special)])
            piece = about["model"].get("type") == "WordPiece"
            words = Words.of(
                ordinary, size, about["model"]["continuing_subword_prefix"] if piece else None
            )
        mask_token, *others = spec.tokens.values()
        masked = Masked(spec.share, mask_token, frozenset(special), self.manifest.vocab_size, words)
        if spec.kind == "masked":
            return masked
        cls_token, sep_token, pad_token = others
        return NextSentence(masked, cls_token, sep_token, pad_token, self.manifest.separator_id)

    def _windows(self, step: int, start: int, stop: int, order: int = 0) -> Tokens:
        """The windows of these positions; of the two orders neither tells of the other."""
        positions = step * self.global_batch + np.arange(start, stop, dtype=np.int64)
        epochs, offsets = np.divmod(positions, self.num_windows)
        windows = np.empty_like(offsets)
        for epoch in range(int(epochs[0]), int(epochs[-1]) + 1):
            here = epochs == epoch
            keyed = -1 - epoch if order else epoch
            windows[here] = permute(offsets[here], self.num_windows, self.seed, keyed)
        return windows

    def _read(self, window: int) -> Tokens:
        """The context + 1 tokens of a window, which may lie across shards."""
        first, stop = window * self.context, (window + 1) * self.context + 1
        edges = np.searchsorted(self._starts, [first, stop - 1], side="right")
        parts = []
        for shard in range(int(edges[0]) - 1, int(edges[1])):
            start = int(self._starts[shard])
            parts.append(self._shard(shard)[max(first - start, 0) : stop - start])
        return np.concatenate(parts).astype(np.int64)

    def _map(self, index: int) -> npt.NDArray[Any]:
        """A shard, memory-mapped: pages that no window touches are never read."""
        path = self._folder / self.manifest.shards[index].file
        return np.memmap(path, dtype=self.manifest.file_dtype, mode="r")


_U64 = np.uint64


def permute(
    indices: npt.NDArray[np.int64], size: int, seed: int, epoch: int
) -> npt.NDArray[np.int64]:
    """Images of `indices` under the permutation of range(`size`) keyed by (`seed`, `epoch`).

    `indices` and the result have shape (n,) and values in [0, size).
    """
    # A 64-bit key for each of eight rounds, hashed: neighbouring seeds and epochs are unrelated.
    digest = hashlib.blake2b(f"samestep batch order {seed} {epoch}".encode(), digest_size=64)
    keys = np.frombuffer(digest.digest(), dtype="<u8").astype(_U64)
    num_bits = max(2, (size - 1).bit_length())
    low_bits = _U64(num_bits // 2)
    low_mask = _U64((1 << (num_bits // 2)) - 1)
    high_mask = _U64((1 << (num_bits - num_bits // 2)) - 1)
    values, outside = indices.astype(_U64), np.full(indices.shape, True)
    # The rounds are a bijection of [0, 2**num_bits), taken again from each value outside of range.
    while outside.any():
        low, high = values[outside] & low_mask, values[outside] >> low_bits
        # The halves take turns in masking one another.
        for number, key in enumerate(keys):
            if number % 2 == 0:
                high ^= _mix(low ^ key) & high_mask
            else:
                low ^= _mix(high ^ key) & low_mask
        values[outside] = (high << low_bits) | low
        outside = values >= size
    return values.astype(np.int64)


def _mix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The finaliser of SplitMix64 (Steele, Lea & Flood 2014): every bit depends on every bit."""
    values = (values ^ (values >> _U64(30))) * _U64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> _U64(27))) * _U64(0x94D049BB133111EB)
    return values ^ (values >> _U64(31))
