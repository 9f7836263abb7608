"""Sharded data parallelism: ZeRO's stages 1 to 3 (Rajbhandari et al. 2020), 2 and 3 by FSDP2.

Stage 1 reduce-scatters gradients in buckets during the backward pass, and gathers the weights that
it updated during the next forward pass.
Stages 2 and 3 gather weights before each block and reduce-scatter its gradients after it; stage 3
gathers them twice. Within groups of ranks, such as those of a node, shards are added up over the
groups by an all-reduce: HSDP, FSDP2's mesh of two axes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from pipeline import models
from pipeline.cost.traffic import Traffic
from pipeline.errors import StudyError, UnsupportedError, refuse
from pipeline.models import FP32
from pipeline.parallel import mesh
from pipeline.parallel.mesh import BUCKET_BYTES, CONTEXT, DATA, EXPERT, REPLICA, Degrees, Layout
from pipeline.parallel.types import Parts, Trainable
from pipeline.precision.widths import widths
from pipeline.strategies.base import Footprint, Strategy, along, bucket_bytes
from pipeline.study.spec import ModelSpec, RunSpec, WorldSpec


@dataclass(frozen=True)
class Sharded(Strategy):
    """`stage`: what is sharded: 1 the optimiser's state, 2 also gradients, 3 also weights.

    `ranks`: over how many neighbours, 0 for all; groups of so many are replicas of each other.
    `bucket_cap_mb`: under stage 1 gradients and weights travel in buckets of so many MiB in fp32.
    `offload`: under stages 2 and 3 on CUDA all shards lie on the host, where the optimiser steps.
    Where the precision keeps masters, these are the shards, and what is gathered is narrow, under
    stages 2 and 3 by FSDP2's mixed-precision policy.
    """

    modules = ("torch.distributed.fsdp", "torch.distributed.tensor")
    needs_of_torch = ("torch.distributed.fsdp._fully_shard._fsdp_api:ReduceScatter",)
    precisions = (
        "fp32", "tf32", "bf16", "fp16", "amp_o1", "amp_o2", "bf16_masters", "bf16_reduced"
    )  # fmt: skip
    choices = (("stage", (1, 2, 3)),)
    ranges = (("bucket_cap_mb", 0.001, 1_000_000),)
    variants = (
        {"stage": 1},
        {"stage": 2},
        {"ranks": 2},
        {"ranks": 2, "stage": 1},
        {"ranks": 2, "stage": 2},
        {"stage": 1, "bucket_cap_mb": 0.01},
    )

    use = "weights, gradients or optimiser state do not fit one device"

    stage: int = 3
    ranks: int = 0
    offload: bool = False
    bucket_cap_mb: float = BUCKET_BYTES / 2**20

    @property
    def cuts_weights(self) -> bool:
        """Rows of all weights, from stage 2 on."""
        return self.stage > 1 and not self.offload

    @property
    def split(self) -> str:
        """The parts that its stage shards."""
        parts = ("optimiser state", "gradients", "weights")
        return ", ".join(parts[: self.stage])

    def layout(self, world: WorldSpec) -> Layout:
        """One process per device, neighbours sharing a replica; StudyError on what does not fit."""
        if self.offload:
            refuse(StudyError, "sharded option offload: ", [
                (world.device == "cpu",
                 "weights lie on the CPU already with cluster.device cpu; leave it out"),
                (self.stage == 1,
                 "stage 1 keeps whole weights on the device; set stage to 2 or 3; leave it out"),
                (self.ranks, f"not offered beside ranks {self.ranks}; leave it out"),
            ])  # fmt: skip
        if self.stage > 1 and self.bucket_cap_mb != Sharded.bucket_cap_mb:
            raise StudyError(
                f"sharded option bucket_cap_mb {self.bucket_cap_mb} does nothing under stage "
                f"{self.stage}, which has a message for each block; leave it out, or set stage to 1"
            )
        ranks = self.ranks or world.size
        if ranks == world.size:
            return super().layout(world)
        if ranks == 1 or world.size % ranks:
            near = min(mesh.divisors(world.size)[1:] or [1], key=lambda n: abs(n - ranks))
            raise StudyError(
                f"sharded option ranks: {world.size} ranks are no replicas x {ranks} ranks that "
                f"share the shards of one, at least 2; the nearest is {world.size // near} x {near}"
                f": set ranks to {near}, or to 0 for all"
            )
        return Layout.of(world, (REPLICA, world.size // ranks), (DATA, ranks))

    def check_precision(self, name: str) -> None:
        """Besides, shards on the host have no loss scale, and stage 1 no narrow weights.

        FSDP2 all-reduces over replicas in the type in which gradients add up.
        """
        super().check_precision(name)
        refuse(UnsupportedError, "sharded option ", [
            (self.ranks and self.stage > 1 and name == "bf16_reduced",
             f"ranks {self.ranks}: between replicas FSDP2 sends gradients as they add up, which is "
             "not narrow in bf16_reduced; use bf16_masters, stage 1, or ranks 0"),
            (self.stage == 1 and name == "amp_o2",
             "stage 1: amp_o2 narrows weights by FSDP2, which stages 2 and 3 use; set stage to one "
             "of them, or the precision to bf16_masters"),
            (self.offload and name in ("fp16", "amp_o1", "amp_o2"),
             f"offload: {name} scales the loss, which is not done here with gradients on the CPU; "
             "use fp32, tf32 or bf16"),
        ])  # fmt: skip

    def knobs(self, degrees: Degrees) -> dict[str, Any] | None:
        """The stage and over how many ranks, along the data axis alone."""
        if not degrees.zero or degrees.tensor * degrees.pipeline > 1:
            return None
        return {"stage": degrees.zero} | ({"ranks": degrees.shard} if degrees.shard else {})

    def degrees(self, spec: RunSpec, layout: Layout) -> Degrees | None:
        """The stage of ZeRO along the data axis; what lies on the host has no published step."""
        if self.offload:
            return None
        pieces = self.pieces(spec, layout)
        shard = layout.size(DATA) if REPLICA in dict(layout.axes) else 0
        return Degrees(layout.data_parallel, zero=self.stage, microbatches=pieces, shard=shard)

    def footprint(self, spec: RunSpec, layout: Layout, rank: int, gradients: int) -> Footprint:
        """Shares of what is sharded, and what is gathered or waits for its reduction meanwhile."""
        if self.stage == 1:
            rows = rows_of_stage_1(spec, layout, gradients, cap=self.bucket_cap_mb * 2**20)
            return rows.holding(1.0, owned=1 / layout.size(DATA))
        sizes = spec.model.num_layers, *block_and_rest(spec.model)
        kept = shards_by_fsdp(spec, self.stage, layout.size(DATA), *sizes)
        if not self.offload:
            return kept
        return replace(
            kept, optimiser_share=0.0, weight_share=0.0, master_share=0.0, gradient_share=0.0
        )

    def sends(self, spec: RunSpec, layout: Layout, rank: int, gradients: int) -> Sequence[Traffic]:
        """Weights are gathered, gradients reduced and scattered, their shards all-reduced."""
        shards = 2 * gradients / layout.size(DATA)
        if self.stage == 1:
            groups = max(1.0, gradients / (self.bucket_cap_mb * 2**20))
            weights = widths(spec.precision).weight * models.num_parameters(spec.model)
            total = gradients + weights
            data = along(layout, DATA, "(n-1)/n (G + W)", total, groups, halves=True)
        else:
            groups, sizes = spec.model.num_layers + 1.0, block_and_rest(spec.model)
            data = sent_by_fsdp(spec, layout, self.stage, gradients, *sizes)
        overlap = self.stage == 1
        return (*data, *along(layout, REPLICA, "2(n-1)/n G/s", shards, groups, overlap=overlap))

    def build(self, parts: Parts) -> Trainable:
        """Cut the weights, or under stage 1 the optimiser, and reduce in the backward pass."""
        from pipeline.strategies.sharded import step

        if self.stage == 1:
            return step.shard_optimiser(parts, self.bucket_cap_mb * 2**20)
        return step.shard_weights(parts, reshard=self.stage == 3, offload=self.offload)


def block_and_rest(model: ModelSpec) -> tuple[int, int]:
    """Parameters of a block, and of all that is outside of the blocks."""
    block = models.family(model).layer_parameters(model)
    return block, models.num_parameters(model) - model.num_layers * block


def rows_of_stage_1(
    spec: RunSpec,
    layout: Layout,
    gradients: float,
    share: float = 1.0,
    owned: float = 0.0,
    cap: float = BUCKET_BYTES,
    layers: float = 1.0,
    ends: float = 1.0,
) -> Footprint:
    """Memory under stage 1 besides weights and gradients, of which a rank has this share.

    `owned`: share that its rows are of all, 0 for an equal one of what the data ranks have.
    Rows of its gradients, and of fp32 weights where there are no masters; buckets in the order of
    the ranks while they are reduced, on a CPU with what comes from each other rank; then all that
    is gathered. `gradients`: bytes of all of them; `cap`, `layers`, `ends` as for `bucket_bytes`.
    """
    width, whole, gradients = widths(spec.precision), gradients, share * gradients
    weights = share * width.weight * models.num_parameters(spec.model)
    alike = layout.size(DATA) * layout.size(CONTEXT)
    rows = owned * whole or gradients / alike
    rows *= 1 if width.weight < FP32 else 2
    # Two of them are on their way; an embedding and an untied output layer are taken to be apart.
    bucket = bucket_bytes(spec.model, gradients, cap, layers=layers, ends=ends)
    bucket += bucket_bytes(spec.model, gradients - bucket, cap, layers=layers, ends=0)
    pieces = bucket * (1 - 1 / (alike * layout.size(EXPERT)))
    # A CPU's heap keeps the places of gradients, of the bucket, of what is gathered and of Gloo's
    # copy of that: blocks of so many sizes never fit one another's.
    heap = layout.device == "cpu"
    return Footprint(
        buffer_bytes=0 if heap else bucket,
        holds_gradients=heap,
        gathered_bytes=int(rows + (bucket + pieces + 2 * weights if heap else 0)),
    )


def shards_by_fsdp(
    spec: RunSpec, stage: int, ranks: int, layers: int, block: float, rest: float
) -> Footprint:
    """Memory under stage 2 or 3 over so many ranks, of so many parameters a block and besides."""
    width = widths(spec.precision)
    count, masters = rest + layers * block, width.weight < FP32
    share = count / models.num_parameters(spec.model) / ranks
    whole = count if stage == 2 else rest + min(2, layers) * block
    # Of narrow weights and gradients no shard is kept besides that of their fp32 masters.
    beside = FP32 if width.gradient < FP32 else 0
    return Footprint(
        # the last group's whole gradients and their copy in the order of the ranks
        buffer_bytes=int((width.weight + width.gradient) * max(rest, block)),
        optimiser_share=share,
        weight_share=0.0 if masters else share,
        master_share=share,
        gradient_share=share * FP32 / (width.gradient + beside),
        gathered_bytes=int(width.weight * whole),
    )


def sent_by_fsdp(
    spec: RunSpec, layout: Layout, stage: int, gradients: float, block: float, rest: float
) -> Sequence[Traffic]:
    """Along the data axis; see `gathered_by_fsdp`."""
    total, formula, messages = gathered_by_fsdp(spec, stage, gradients, block, rest)
    return along(layout, DATA, f"(n-1)/n ({formula})", total, messages, halves=True)


def gathered_by_fsdp(
    spec: RunSpec, stage: int, gradients: float, block: float, rest: float
) -> tuple[float, str, float]:
    """Bytes under stage 2 or 3 of which (n-1)/n is sent, in a formula, and messages.

    Weights in every micro-batch, gradients in the last one.
    """
    pieces, each = spec.workload.accumulation_steps, widths(spec.precision).weight
    blocks = each * spec.model.num_layers * block
    weights, groups = blocks + each * rest, (spec.model.num_layers + 1) / 2
    if stage == 2:
        return pieces * weights + gradients, "m W + G", (pieces + 1) * groups
    total = pieces * (weights + blocks) + gradients
    return total, "m (W + B) + G", (2 * pieces + 1) * groups
