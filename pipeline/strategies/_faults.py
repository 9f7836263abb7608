"""What the study's first code did in some of its arms only, as options that are off by default.

They exist so that their effect can be measured (study `bai2022-as-published`).
"""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.errors import StudyError, UnsupportedError


@dataclass(frozen=True)
class Faults:
    """`empty_cache`: return CUDA's cached memory after every step.

    `optimiser_steps`: how often the optimiser steps on the same gradients.
    `clip_before_synchronise`: clip each rank's own gradients while they may still be on their way.
    """

    empty_cache: bool = False
    optimiser_steps: int = 1
    clip_before_synchronise: bool = False

    def check(self, device: str) -> None:
        """Raise where a fault cannot be shown; on a CPU there is no cache to empty."""
        if self.optimiser_steps < 1:
            raise StudyError(f"optimiser_steps {self.optimiser_steps} is under 1; set it to 1")
        if self.empty_cache and device != "cuda":
            raise UnsupportedError(
                f"empty_cache needs a CUDA device, given {device}; remove the option"
            )


NO_FAULTS = Faults()
