"""Faults of the study's first code, in some of its arms only, as options that are off by default.

They exist so that their effect can be measured (study `bai2022-as-published`).
"""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.errors import UnsupportedError
from pipeline.precision.base import PrecisionInfo


@dataclass(frozen=True)
class Faults:
    """`empty_cache`: return CUDA's cached memory after every step.

    `optimiser_steps`: how often the optimiser steps on the same gradients.
    `clip_before_synchronise`: clip each rank's own gradients while they may still be on their way.
    """

    empty_cache: bool = False
    optimiser_steps: int = 1
    clip_before_synchronise: bool = False

    def check(self, device: str, precision: PrecisionInfo) -> None:
        """Raise where a fault cannot be shown.

        On a CPU there is no cache to empty; torch's GradScaler steps once for each unscaling.
        """
        if self.optimiser_steps > 1 and precision.loss_scaling and precision.library == "torch":
            raise UnsupportedError(
                f"optimiser_steps {self.optimiser_steps} cannot run with torch's loss scaling "
                f"({precision.name}); use fp32, bf16 or apex_o1"
            )
        if self.empty_cache and device != "cuda":
            raise UnsupportedError(
                f"empty_cache needs a CUDA device, given {device}; remove the option"
            )


NO_FAULTS = Faults()
