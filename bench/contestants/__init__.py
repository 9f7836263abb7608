"""Programs that train the same model, held against this one, and what they train.

One model, one batch shape, synthetic tokens, one optimiser.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipeline import models
from pipeline.study.spec import ModelSpec, OptimiserSpec

OPTIMISER = OptimiserSpec("adamw", 6e-4, 0.9, 0.95, 1e-8, 0.1, 1.0, "constant", 0)
"""AdamW at a rate that stays; clipping at an L2 norm of 1."""

SIZES = {
    "tiny": ModelSpec("gpt2", num_layers=1, width=32, num_heads=2, context=16, vocab_size=64),
    "5M": ModelSpec("gpt2", num_layers=6, width=256, num_heads=8, context=256, vocab_size=2048),
    "14M": ModelSpec("gpt2", num_layers=7, width=384, num_heads=6, context=256, vocab_size=4096),
    "124M": ModelSpec(
        "gpt2", num_layers=12, width=768, num_heads=12, context=1024, vocab_size=50304
    ),
}
"""`tiny` is for tests; 124M is GPT-2 with its vocabulary padded to a multiple of 64."""


@dataclass(frozen=True)
class Setting:
    """One comparison: `size` of SIZES, `batch` sequences per step, a precision, compiled or not."""

    size: str
    batch: int
    precision: str
    compiled: bool
    device: str = "cpu"

    @property
    def model(self) -> ModelSpec:
        """The model's shape."""
        return SIZES[self.size]

    @property
    def num_parameters(self) -> int:
        """Parameters of the model, tied ones once."""
        return models.num_parameters(self.model)


class Tokens:
    """Token ids of a fixed generator, in memory: (sequences, context) inputs and targets."""

    def __init__(self, setting: Setting, sequences: int = 512) -> None:
        model, self.batch = setting.model, setting.batch
        generator = np.random.Generator(np.random.Philox(key=[7, 7]))
        self.ids = generator.integers(0, model.vocab_size, (sequences, model.context + 1))

    def slice(self, step: int, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Sequences `start` to `stop` of the batch of `step`, each (sequences, context)."""
        places = (step * self.batch + np.arange(start, stop)) % len(self.ids)
        ids = self.ids[places]
        return ids[:, :-1], ids[:, 1:]
