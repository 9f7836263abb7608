"""Expert parallelism: ranks share the experts of a mixture (GShard, 2020), with a data axis.

Each rank has its part of the batch, some of each layer's experts and all else. Tokens travel to the
ranks of their experts and the outputs back by all-to-alls, and none is dropped. Gradients of
experts are averaged over the replicas of these alone, as by DeepSpeed-MoE (arXiv 2201.05596).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pipeline import models
from pipeline.cost.traffic import ALL_TO_ALL, Traffic, ring
from pipeline.errors import StudyError
from pipeline.parallel.mesh import BUCKET_BYTES, DATA, EXPERT, Degrees, Layout, axis_size, nearest
from pipeline.parallel.types import Parts, Trainable
from pipeline.precision.widths import widths
from pipeline.strategies.base import Footprint, Strategy, along
from pipeline.study.spec import RunSpec, WorldSpec


@dataclass(frozen=True)
class Expert(Strategy):
    """`ranks`: size of the expert axis, 0 for all ranks; groups of so many are replicas."""

    precisions = ("fp32", "tf32", "bf16", "fp16", "amp_o1", "bf16_masters", "bf16_reduced")
    variants = ({"ranks": 4},)
    example = "MixtralForCausalLM"
    cuts_weights = True
    use = "the experts of a mixture do not fit one device"
    split = "experts: weights, gradients, optimiser state"

    ranks: int = 2

    def layout(self, world: WorldSpec) -> Layout:
        """Axes (data, expert), neighbours along the latter; StudyError where they do not fit."""
        size = axis_size("expert", EXPERT, self.ranks, world)
        return Layout.of(world, (DATA, world.size // size), (EXPERT, size))

    def degrees(self, spec: RunSpec, layout: Layout) -> Degrees | None:
        """None: the cost model has no such axis."""
        return None

    def check_spec(self, spec: RunSpec) -> None:
        """Raise StudyError for a model without experts, or ranks that do not divide them."""
        size, mixture = dict(self.layout(spec.world).axes)[EXPERT], models.experts(spec.model)
        if mixture is None:
            raise StudyError(
                f"{spec.run_id}: strategy expert cuts the experts of a mixture, which "
                f"{spec.model.architecture or spec.model.family} has not; use a model such as "
                f"{self.example}, or a strategy such as ddp"
            )
        if mixture.count % size:
            near = nearest(size, math.gcd(mixture.count, spec.world.size))
            raise StudyError(
                f"{spec.run_id}: {size} expert ranks do not divide {mixture.count} experts; the "
                f"nearest option ranks that divides these and {spec.world.size} ranks is {near}"
            )

    def footprint(self, spec: RunSpec, layout: Layout, rank: int, gradients: int) -> Footprint:
        """Its share of the experts, and one bucket of the reduction.

        Activations are those of tokens that go to all experts alike: where more go to a rank's, it
        keeps more.
        """
        cut = _share_of_experts(spec)
        share = 1 - cut + cut / dict(layout.axes)[EXPERT]
        bucket = min(BUCKET_BYTES, share * gradients)
        return Footprint(
            buffer_bytes=int(bucket) if layout.num_processes > 1 else 0,
            weight_share=share,
            gradient_share=share,
            held_share=share,
            optimiser_share=share,
        )

    def sends(self, spec: RunSpec, layout: Layout, rank: int, gradients: int) -> Sequence[Traffic]:
        """Tokens and outputs along the expert axis, both ways, and all-reduces of the gradients.

        Tokens and outputs travel again in a block that is recomputed. What leaves a rank depends on
        the routing: the formula is the mean over the ranks where a token's experts are as likely on
        any of them, and no routing makes that mean more than n/(n-1) times as large.
        """
        size, mixture = dict(layout.axes)[EXPERT], models.experts(spec.model)
        assert mixture is not None
        if size == 1:
            return along(layout, DATA, "2(n-1)/n G", 2 * gradients, overlap=True)
        experts = gradients * _share_of_experts(spec) / size
        rest = gradients - size * experts
        times = (4 + 2 * spec.recomputed_share) * spec.model.num_layers
        tokens = spec.global_batch_tokens // layout.data_parallel
        rows = tokens * mixture.chosen * spec.model.width * widths(spec.precision).stream
        line = layout.along(EXPERT, rank)
        away = sum(layout.leaves_node(rank, (rank, peer)) for peer in line if peer != rank)
        sent, leaving = ring(times * rows, size), times * rows / size * away
        messages = times * spec.workload.accumulation_steps
        formula = f"{times / spec.model.num_layers:g}L k A"
        if layout.data_parallel == size:  # all else is averaged along the same axis
            formula = f"(n-1)/n ({formula} + 2 (G - E))"
            sent += ring(2 * rest, size)
            leaving += ring(2 * rest, size) * layout.leaves_node(rank, line)
            return (Traffic(EXPERT, formula, sent, messages, ALL_TO_ALL, leaving=leaving),)
        everyone, buckets = ring(2 * rest, layout.num_processes), max(1.0, rest / BUCKET_BYTES)
        return (
            Traffic(EXPERT, f"(n-1)/n {formula}", sent, messages, ALL_TO_ALL, leaving=leaving),
            Traffic(f"{DATA} x {EXPERT}", "2(n-1)/n (G - E)", everyone, buckets, overlap=True),
            *along(layout, DATA, "2(n-1)/n E", 2 * experts, overlap=True),
        )

    def build(self, parts: Parts) -> Trainable:
        """Cut the experts along the expert axis, average in the backward pass."""
        from pipeline.strategies.expert.step import ExpertStepper

        return ExpertStepper(parts)


def _share_of_experts(spec: RunSpec) -> float:
    """Share of all parameters that are experts'."""
    mixture = models.experts(spec.model)
    return mixture.parameters / models.num_parameters(spec.model) if mixture else 0.0
