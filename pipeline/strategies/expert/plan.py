"""Expert parallelism: ranks share the experts of a mixture (GShard, 2020), with a data axis.

Each rank has its part of the batch, some of each layer's experts and all else. Tokens travel to the
ranks of their experts and the outputs back by all-to-alls, and none is dropped. Gradients of
experts are averaged over the replicas of these alone, as by DeepSpeed-MoE (arXiv 2201.05596).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pipeline import models
from pipeline.cost.traffic import ALL_REDUCE, ALL_TO_ALL, HALVES, Traffic, ring
from pipeline.errors import StudyError
from pipeline.parallel import mesh
from pipeline.parallel.mesh import CONTEXT, DATA, EXPERT, Degrees, Layout
from pipeline.parallel.types import Parts, Trainable
from pipeline.precision.widths import widths
from pipeline.strategies.base import Footprint, Strategy, along, bucket_bytes
from pipeline.strategies.sharded.plan import rows_of_stage_1
from pipeline.study.spec import RunSpec, WorldSpec


@dataclass(frozen=True)
class Expert(Strategy):
    """`ranks`: size of the expert axis, 0 for all ranks; groups of so many are replicas.

    `zero_stage`: 0, or 1 to shard the optimiser's state, of experts along the data axis and of all
    else over all ranks.
    """

    choices = (("zero_stage", (0, 1)),)
    precisions = ("fp32", "tf32", "bf16", "fp16", "amp_o1", "bf16_masters", "bf16_reduced")
    variants = ({"ranks": 4}, {"zero_stage": 1})
    example = "MixtralForCausalLM"
    cuts_weights = cuts_experts = True
    published = False
    use = "the experts of a mixture do not fit one device"

    ranks: int = 2
    zero_stage: int = 0

    @property
    def split(self) -> str:
        """Experts, and under ZeRO all that the optimiser keeps."""
        more = "; optimiser state also over the ranks that hold the same" if self.zero_stage else ""
        return f"experts: weights, gradients, optimiser state{more}"

    def layout(self, world: WorldSpec) -> Layout:
        """Axes (data, expert), neighbours along the latter; StudyError where they do not fit."""
        size = mesh.axis_size("expert", EXPERT, self.ranks, world)
        if self.zero_stage and size == world.size:
            raise StudyError(f"expert option zero_stage 1: {mesh.no_data_axis(EXPERT, size)}")
        return Layout.of(world, (DATA, world.size // size), (EXPERT, size))

    def knobs(self, degrees: Degrees) -> dict[str, Any] | None:
        """Knobs for an expert axis beside data, with ZeRO 0 or 1; None beside any other axis."""
        if degrees.tensor * degrees.pipeline > 1 or degrees.zero > 1 or degrees.shard:
            return None
        return {"ranks": degrees.expert} | ({"zero_stage": 1} if degrees.zero else {})

    def check_spec(self, spec: RunSpec) -> None:
        """Raise StudyError for a model without experts, or ranks that do not divide them."""
        size = self.layout(spec.world).size(EXPERT)
        check_expert_axis(spec, "ranks", size, spec.world.size)

    def footprint(self, spec: RunSpec, layout: Layout, rank: int, gradients: int) -> Footprint:
        """Its share of the experts, and one bucket of the reduction.

        Activations are those of tokens that go to all experts alike: where more go to a rank's, it
        keeps more.
        """
        cut, everyone = share_of_experts(spec), layout.num_processes
        share = 1 - cut + cut / layout.size(EXPERT)
        part = 1 / layout.size(EXPERT)
        bucket = bucket_bytes(spec.model, share * gradients, layers=part)
        reduced = Footprint(buffer_bytes=bucket if everyone > 1 else 0)
        owned = share
        if self.zero_stage:
            owned = 1 / everyone
            reduced = rows_of_stage_1(spec, layout, gradients, share, owned, layers=part)
        return reduced.holding(share, owned)

    def sends(self, spec: RunSpec, layout: Layout, rank: int, gradients: int) -> Sequence[Traffic]:
        """Tokens and outputs along the expert axis, both ways, and all-reduces of the gradients."""
        zero, width, size = bool(self.zero_stage), widths(spec.precision), layout.size(EXPERT)
        if size == 1:
            payload = (1 + width.weight / width.reduced if zero else 2) * gradients
            formula = "(n-1)/n (G + W)" if zero else "2(n-1)/n G"
            return along(layout, DATA, formula, payload, overlap=not zero, halves=zero)
        own = gradients * share_of_experts(spec) / size
        return sent_along(
            spec,
            layout,
            rank,
            layers=spec.model.num_layers,
            pieces=spec.workload.accumulation_steps,
            experts=own,
            rest=gradients - size * own,
            zero=zero,
            overlap=not zero,
        )

    def build(self, parts: Parts) -> Trainable:
        """Cut the experts along the expert axis, average in the backward pass."""
        from pipeline.strategies.expert.step import expert_step

        return expert_step(parts, zero_stage=self.zero_stage)


def check_expert_axis(spec: RunSpec, option: str, size: int, ranks: int) -> None:
    """Raise StudyError for a model without experts, or an axis that does not divide them.

    `ranks`: those of the expert axis and of the data axis, together.
    """
    mixture = models.experts(spec.model)
    if mixture is None:
        raise StudyError(
            f"{spec.run_id}: strategy {spec.strategy} cuts the experts of a mixture, which "
            f"{spec.model.architecture or spec.model.family} has not; use a model such as "
            f"{Expert.example}, or a strategy such as ddp"
        )
    if mixture.count % size:
        near = mesh.nearest(size, math.gcd(mixture.count, ranks))
        raise StudyError(
            f"{spec.run_id}: {size} expert ranks do not divide {mixture.count} experts; the "
            f"nearest option {option} that divides these and {ranks} ranks is {near}"
        )


def sent_along(
    spec: RunSpec, layout: Layout, rank: int, *, layers: float, pieces: int, experts: float,
    rest: float, zero: bool, overlap: bool = False,
) -> Sequence[Traffic]:  # fmt: skip
    """Tokens and outputs along the expert axis, gradients over it, data and context axis.

    Tokens travel both ways, once more in a block that is recomputed. The bytes that leave a rank
    depend on the routing: the formula is the mean over the ranks where a token's experts are as
    likely on any of them, and no routing makes that mean more than n/(n-1) times as large.
    `experts` and `rest`: bytes of a rank's gradients of its experts and of all else; `zero`: rows
    of them by stage 1 of ZeRO.
    """
    size, mixture = layout.size(EXPERT), models.experts(spec.model)
    assert mixture is not None
    width = widths(spec.precision)
    # An all-reduce of gradients, or half of one and then half of one of as many weights.
    each = 1 + width.weight / width.reduced if zero else 2.0
    stated, kind = ("(n-1)/n ({} + their weights)", HALVES) if zero else ("2(n-1)/n {}", ALL_REDUCE)
    again = 4 + 2 * spec.recomputed_share
    tokens, times = spec.global_batch_tokens // layout.averaging, again * layers
    rows = tokens * mixture.chosen * spec.model.width * width.stream
    line = layout.along(EXPERT, rank)
    away = sum(layout.leaves_node(rank, (rank, peer)) for peer in line if peer != rank)
    sent, leaving = ring(times * rows, size), times * rows / size * away
    formula = f"{again:g}L k A"
    if layout.averaging == size:  # all else is averaged along the same axis
        others = "G - E + their weights" if zero else "2 (G - E)"
        sent += ring(each * rest, size)
        leaving += ring(each * rest, size) * layout.leaves_node(rank, line)
        formula = f"(n-1)/n ({formula} + {others})"
        return (Traffic(EXPERT, formula, sent, times * pieces, ALL_TO_ALL, leaving=leaving),)
    several = [name for name, ranks in layout.axes if ranks > 1]
    both, replicas = (
        " x ".join(name for name in several if name in axes)
        for axes in ((DATA, CONTEXT, EXPERT), (DATA, CONTEXT))
    )
    everyone, buckets = ring(each * rest, layout.averaging), max(1.0, rest / mesh.BUCKET_BYTES)
    of_experts = ring(each * experts, layout.averaging // size)
    others = stated.format("G - E" if zero else "(G - E)")
    tokens_sent = Traffic(
        EXPERT, f"(n-1)/n {formula}", sent, times * pieces, ALL_TO_ALL, leaving=leaving
    )
    return (
        tokens_sent,
        Traffic(both, others, everyone, buckets, kind, overlap=overlap),
        Traffic(replicas, stated.format("E"), of_experts, 1.0, kind, overlap),
    )


def share_of_experts(spec: RunSpec) -> float:
    """Share of all parameters that are experts'."""
    mixture = models.experts(spec.model)
    return mixture.parameters / models.num_parameters(spec.model) if mixture else 0.0
