"""Training objectives: windows of tokens to the inputs, targets and weights of a batch.

An objective is a pure function of the windows, the seed, the step and their positions in the global
batch. Neither strategy nor world size enters, so that masks too are those of a single device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.int64]

REPLACED, RANDOM = 0.8, 0.1
"""Of the chosen tokens, the shares that become the mask token and any token; the rest stay as they
are (Devlin et al. 2019, arXiv 1810.04805)."""


class Objective(Protocol):
    """Windows to what the model gets."""

    def __call__(
        self, windows: Tokens, seed: int, step: int, start: int
    ) -> tuple[npt.NDArray[Any], ...]:
        """Inputs, targets and, where they do not count alike, weights, each (sequences, context).

        `windows` (sequences, context + 1) have the positions from `start` on in the global batch.
        """


def causal(windows: Tokens, seed: int, step: int, start: int) -> tuple[Tokens, Tokens]:
    """The next token is the target of each; all count alike."""
    return windows[:, :-1], windows[:, 1:]


@dataclass(frozen=True)
class Masked:
    """A `share` of the tokens, none of them `special`, is chosen; these alone have a weight.

    `vocab_size` is the tokeniser's, from which random tokens are drawn.
    """

    share: float
    mask_token: int
    special: frozenset[int]
    vocab_size: int

    def __call__(
        self, windows: Tokens, seed: int, step: int, start: int
    ) -> tuple[Tokens, Tokens, npt.NDArray[np.float32]]:
        """Each sequence has draws of its own, keyed by seed, step and position."""
        targets = windows[:, :-1]
        draws = []
        for position in range(start, start + len(targets)):
            generator = np.random.Philox(counter=position << 128, key=seed + (step << 64))
            draws.append(np.random.Generator(generator).random((3, targets.shape[1])))
        choice, fate, token = np.stack(draws, axis=1)
        chosen = (choice < self.share) & ~np.isin(targets, list(self.special))
        any_token = (token * self.vocab_size).astype(np.int64)
        changed = np.where(fate < REPLACED, self.mask_token, any_token)
        inputs = np.where(chosen & (fate < REPLACED + RANDOM), changed, targets)
        return inputs, targets, chosen.astype(np.float32)
