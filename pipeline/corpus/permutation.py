"""A keyed permutation of 0..n-1 that needs no table: a Feistel network with cycle walking.

The network permutes a power of two at least as large as n, whatever its round function is (Luby &
Rackoff 1988); values that land at n or above are sent through again until they land below
(Black & Rogaway 2002). Memory is that of the indices asked for.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

NUM_ROUNDS = 8
_U64 = np.uint64


def permute(
    indices: npt.NDArray[np.int64], size: int, seed: int, epoch: int
) -> npt.NDArray[np.int64]:
    """Where the permutation of range(`size`) keyed by (`seed`, `epoch`) sends `indices`.

    `indices` and the result have shape (n,) and values in [0, size).
    """
    keys = _round_keys(seed, epoch)
    num_bits = max(2, (size - 1).bit_length())
    values = _network(indices.astype(_U64), num_bits, keys)
    outside = values >= size
    while outside.any():
        values[outside] = _network(values[outside], num_bits, keys)
        outside = values >= size
    return values.astype(np.int64)


def _round_keys(seed: int, epoch: int) -> npt.NDArray[np.uint64]:
    """One 64-bit key a round, hashed so that neighbouring seeds and epochs are unrelated."""
    digest = hashlib.blake2b(f"samestep batch order {seed} {epoch}".encode(), digest_size=64)
    return np.frombuffer(digest.digest(), dtype="<u8").astype(_U64)


def _network(
    values: npt.NDArray[np.uint64], num_bits: int, keys: npt.NDArray[np.uint64]
) -> npt.NDArray[np.uint64]:
    """A bijection of [0, 2**num_bits): halves take turns in masking one another."""
    low_bits = _U64(num_bits // 2)
    low_mask = _U64((1 << (num_bits // 2)) - 1)
    high_mask = _U64((1 << (num_bits - num_bits // 2)) - 1)
    low, high = values & low_mask, values >> low_bits
    for number, key in enumerate(keys[:NUM_ROUNDS]):
        if number % 2 == 0:
            high = high ^ (_mix(low ^ key) & high_mask)
        else:
            low = low ^ (_mix(high ^ key) & low_mask)
    return (high << low_bits) | low


def _mix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The finaliser of SplitMix64 (Steele, Lea & Flood 2014): every bit depends on every bit."""
    values = (values ^ (values >> _U64(30))) * _U64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> _U64(27))) * _U64(0x94D049BB133111EB)
    return values ^ (values >> _U64(31))
