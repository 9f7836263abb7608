"""DeepSpeed: ZeRO's stages 1 to 3 (Rajbhandari et al. 2020) by the package itself.

The same step as `sharded`, made by other code. An optional extra: where it is not installed, the
cell is `unsupported` with the reason.
"""

from __future__ import annotations

import importlib.metadata
import math
from collections.abc import Sequence
from dataclasses import dataclass

from pipeline import models
from pipeline.cost.traffic import Traffic
from pipeline.errors import MissingError, StudyError
from pipeline.models import FP32
from pipeline.parallel.mesh import DATA, Degrees, Layout
from pipeline.parallel.types import Parts, Trainable
from pipeline.strategies.base import PLAIN, Footprint, Strategy, along
from pipeline.study.spec import RunSpec

OLDEST = (0, 19, 8)
"""Before, ZeRO-3 on Gloo waited for the last of several gathers only (pull request 8539)."""

PERSISTENT, LIVE = 100_000, 1_000_000_000
"""Numbers: stage 3 keeps a tensor of so many until the update, and any that is used again within so
many until the passes end (its defaults of stage3_param_persistence_threshold and
stage3_max_reuse_distance).
"""

BUCKET = 500_000_000
"""Numbers: gradients are reduced in buckets of at most so many (reduce_bucket_size)."""


@dataclass(frozen=True)
class Deepspeed(Strategy):
    """`stage`: what is sharded: 1 the optimiser's state, 2 also gradients, 3 also weights.

    Weights are fp32; a precision that scales the loss is refused, since DeepSpeed scales it by a
    rule of its own.
    """

    requires = ("deepspeed",)
    install = (
        "DS_ACCELERATOR=cpu DS_BUILD_OPS=0 .venv/bin/pip install --no-build-isolation --no-deps "
        "--require-hashes -r envs/deepspeed.lock"
    )
    precisions = PLAIN
    choices = (("stage", (1, 2, 3)),)
    variants = ({"stage": 1}, {"stage": 2})
    weighs = False

    use = "to hold `sharded` against other code"

    stage: int = 3

    @property
    def split(self) -> str:
        """The parts that its stage shards."""
        return ", ".join(("optimiser state", "gradients", "weights")[: self.stage])

    def check_spec(self, spec: RunSpec) -> None:
        """Besides, raise StudyError for an optimiser that asks for the norm of each tensor."""
        super().check_spec(spec)
        if spec.optimiser.name == "lamb":
            raise StudyError(
                f"{spec.run_id}: DeepSpeed steps runs of all weights joined, and optimiser lamb "
                "needs the norm of each tensor; use strategy sharded, or optimiser adamw"
            )

    def check(self) -> None:
        """Raise MissingError where DeepSpeed is missing or older than `OLDEST`."""
        try:
            version = importlib.metadata.version("deepspeed")
        except importlib.metadata.PackageNotFoundError:
            raise MissingError(
                "DeepSpeed is not installed, an optional extra (docs/strategies.md); run "
                f"`{self.install}`"
            ) from None
        numbers = (int(part) for part in version.split("+")[0].split(".")[:3] if part.isdigit())
        if tuple(numbers) < OLDEST:
            raise MissingError(
                f"DeepSpeed is version {version}, older than {'.'.join(map(str, OLDEST))}, which "
                f"reads weights before they are there; run `{self.install}`"
            )

    def degrees(self, spec: RunSpec, layout: Layout) -> Degrees | None:
        """The stage of ZeRO along the data axis."""
        pieces = self.pieces(spec, layout)
        return Degrees(layout.data_parallel, zero=self.stage, microbatches=pieces)

    def footprint(self, spec: RunSpec, layout: Layout, rank: int, gradients: int) -> Footprint:
        """Shares of what is sharded; the optimiser steps on a copy of this rank's weights.

        Of a large model stage 3 has no more weights gathered at a time than it says.
        """
        share = 1 / layout.num_processes
        rows = int(gradients * share)
        return Footprint(
            buffer_bytes=min(gradients, FP32 * BUCKET) + rows,
            optimiser_share=share,
            gradient_share=share if self.stage > 1 else 1.0,
            weight_share=share if self.stage == 3 else 1.0,
            gathered_bytes=min(gradients, FP32 * LIVE) if self.stage == 3 else rows,
        )

    def sends(self, spec: RunSpec, layout: Layout, rank: int, gradients: int) -> Sequence[Traffic]:
        """Gradients all-reduced, by stages 2 and 3 in every micro-batch, and weights gathered.

        Stage 3 reduces and scatters, which Gloo does by an all-reduce. It gathers each weight once
        after the update, large ones again in every later micro-batch; nothing is stated for a model
        of which it also frees weights between forward and backward pass.
        """
        pieces = spec.workload.accumulation_steps
        weights = FP32 * models.num_parameters(spec.model)
        if self.stage == 1:
            return along(layout, DATA, "2(n-1)/n G + (n-1)/n W", 2 * gradients + weights)
        if self.stage == 2:
            formula = "2(n-1)/n m G + (n-1)/n W"
            return along(layout, DATA, formula, 2 * pieces * gradients + weights)
        if models.num_parameters(spec.model) > LIVE:
            return ()
        shapes = models.family(spec.model).parameter_shapes(spec.model).values()
        large = FP32 * sum(n for n in map(math.prod, shapes) if n > PERSISTENT)
        rounds, factor = (2, "2 ") if layout.backend == "gloo" else (1, "")
        return along(
            layout,
            DATA,
            f"(n-1)/n ({factor}m G + W + (m-1) P)",
            rounds * pieces * gradients + weights + (pieces - 1) * large,
        )

    def build(self, parts: Parts) -> Trainable:
        """Let DeepSpeed's engine wrap model and optimiser."""
        from pipeline.strategies.deepspeed.step import DeepSpeedStepper

        return DeepSpeedStepper(parts, self.stage)
