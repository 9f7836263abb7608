"""Tensor parallelism: Megatron-LM's column and row cuts (Shoeybi et al. 2019), with a data axis.

Every pair of cut layers costs an all-reduce of its activations in each pass; embedding and loss are
cut over the vocabulary. Along the data axis DDP averages the gradients, or FSDP2 cuts what a rank
has once more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from pipeline import models
from pipeline.cost.traffic import Traffic
from pipeline.errors import StudyError, refuse
from pipeline.models import FP32
from pipeline.parallel import mesh
from pipeline.parallel.mesh import DATA, TENSOR, Degrees, Layout
from pipeline.parallel.types import Parts, Trainable
from pipeline.precision.widths import widths
from pipeline.strategies.base import Footprint, Strategy, along, bucket_bytes
from pipeline.strategies.sharded.plan import Sharded, sent_by_fsdp, shards_by_fsdp
from pipeline.study.spec import RunSpec, WorldSpec

END_NUMBERS = 3
"""All-reduced for each token by the loss: the largest logit, the sum, and that of the target."""


@dataclass(frozen=True)
class Part:
    """The layers of a rank: how many of the repeating ones, and whether both ends are among them.

    `sequence`: between the cuts sequences lie in parts on the ranks of the axis.
    """

    layers: int
    is_first: bool
    is_last: bool
    sequence: bool

    def parameters(self, spec: RunSpec) -> tuple[float, float]:
        """Of these layers what a tensor axis leaves whole, and what it cuts."""
        model, sizes = spec.model, models.family(spec.model)
        cuts, ends = sizes.axis_cuts(model), (self.is_first, self.is_last)
        cut = self.layers * (cuts.parameters - cuts.ends.held(True, True)) / model.num_layers
        cut += cuts.ends.held(*ends)
        held = self.layers * sizes.layer_parameters(model) + sizes.ends(model).held(*ends)
        return held - cut, cut

    def all_reduced(self, spec: RunSpec, tokens: float) -> float:
        """Bytes of activations and their gradients that the axis adds up in a step of so many.

        Each block its inputs' gradients and its outputs, the embedding its output, the last layer
        its input's gradient, the loss its numbers. What leaves a product is narrow under
        autocast, what enters it comes from a norm. Cut sequences halve each into an all-gather and
        a reduce-scatter.
        """
        activation = tokens * spec.model.width
        product, norm = widths(spec.precision).product, widths(spec.precision).stream
        cuts = models.axis_cuts(spec.model)
        block = cuts.entries * norm + cuts.exits * product + self._again(spec, product, norm)
        ends = (self.is_first + self.is_last) * norm * activation
        numbers = self.layers * cuts.weights + self.is_last * END_NUMBERS
        return self.layers * block * activation + ends + numbers * FP32 * tokens

    def _again(self, spec: RunSpec, product: float, norm: float) -> float:
        """Bytes that recomputing adds to a block: its first output, or half of that and its inputs.

        A mean over the blocks, where some are recomputed. Nothing is sent between query, key, value
        and what attention makes of them.
        """
        again = models.axis_cuts(spec.model).again
        each = norm + product / 2 if self.sequence else again * product
        return spec.recomputed_share * each

    def messages(self, spec: RunSpec, pieces: int = 0) -> float:
        """All-reduces of a step: those of its blocks and of the ends, the loss's three small."""
        cuts = models.axis_cuts(spec.model)
        each = (cuts.entries + cuts.exits + bool(cuts.weights)) * self.layers
        each += self.is_first + 4 * self.is_last
        return each * (pieces or spec.workload.accumulation_steps)

    def of_block(self, spec: RunSpec, ranks: int) -> tuple[float, float]:
        """Parameters that one of so many ranks holds of a block, and besides the blocks."""
        uncut, cut = replace(self, layers=1, is_first=False, is_last=False).parameters(spec)
        uncut_ends, cut_ends = replace(self, layers=0).parameters(spec)
        return uncut + cut / ranks, uncut_ends + cut_ends / ranks

    def blocks(self, spec: RunSpec) -> str:
        """The part of the formula that is its blocks': `4L`, in activations of fp32."""
        cuts = models.axis_cuts(spec.model)
        return f"{cuts.entries + cuts.exits + self._again(spec, 1, 1):g}L"

    def router(self, spec: RunSpec) -> str:
        """The part that gradients of the weights of experts' outputs are; none in dense models."""
        return " + 4L k T" if models.axis_cuts(spec.model).weights else ""


def check_tensor_axis(spec: RunSpec, option: str, ranks: int, *, sequence: bool) -> None:
    """Raise StudyError where a tensor axis does not divide heads, or sequences that it cuts."""
    cuts = models.axis_cuts(spec.model)
    wanted = [(what, key, count) for key, (what, count) in cuts.heads.items()]
    if sequence and not cuts.sequences:
        raise StudyError(
            f"{spec.run_id}: option sequence of strategy {spec.strategy} cuts sequences, which "
            f"family {spec.model.family} does not know how to do; leave it out"
        )
    if sequence:
        wanted.append(("tokens of a sequence", "context", spec.model.context))
    for what, key, count in wanted:
        if count % ranks:
            raise StudyError(
                f"{spec.run_id}: {ranks} tensor ranks do not divide {count} {what}; the nearest "
                f"option {option} is {mesh.nearest(ranks, count)}, or set model.{key}"
            )


def kept_of_block(ranks: int, *, sequence: bool) -> float:
    """Share of a block's activations on a rank of the axis, 16 values of the width a token in all.

    The 12 between a column and a row cut are parts. Where sequences are cut too, so are the inputs
    of both layer norms; their outputs are gathered.
    """
    return ((2 + 14 / ranks) if sequence else (4 + 12 / ranks)) / 16


@dataclass(frozen=True)
class Tensor(Strategy):
    """`ranks`: size of the tensor axis, 0 for all ranks; the rest are data-parallel.

    `sequence`: sequence parallelism; between pairs of cut layers tokens are cut over the axis.
    `zero_stage`: 0, or stage 2 or 3 of ZeRO along the data axis, by FSDP2 as with strategy sharded;
    hybrid has stage 1.
    """

    choices = (("zero_stage", (0, 1, 2, 3)),)
    precisions = ("fp32", "tf32", "bf16", "fp16", "amp_o1", "bf16_masters", "bf16_reduced")
    variants = (
        {"ranks": 2},
        {"ranks": 2, "sequence": True},
        {"ranks": 2, "zero_stage": 3},
        {"ranks": 2, "zero_stage": 2, "sequence": True},
    )

    cuts_weights = True  # products and the vocabulary, along the tensor axis
    use = "a layer or its activations do not fit, and links are fast"

    ranks: int = 0
    sequence: bool = False
    zero_stage: int = 0

    @property
    def split(self) -> str:
        """The cut layers with all that belongs to them."""
        most = "" if self.sequence else "most "
        again = {2: "optimiser state and gradients", 3: "optimiser state, gradients and weights"}
        more = f"; {again[self.zero_stage]} also over data" if self.zero_stage else ""
        return f"layers: weights, gradients, optimiser state, {most}activations{more}"

    def check(self) -> None:
        """Besides what FSDP2 needs of torch."""
        super().check()
        if self.zero_stage:
            Sharded(self.zero_stage).check()

    def layout(self, world: WorldSpec) -> Layout:
        """Axes (data, tensor), neighbours along the latter; StudyError where they do not fit."""
        size = mesh.axis_size("tensor", TENSOR, self.ranks, world)
        refuse(StudyError, f"tensor option zero_stage {self.zero_stage}: ", [
            (self.zero_stage == 1,
             f"strategy hybrid has it beside {size} tensor ranks; use that with pipeline 1, tensor "
             f"{size}, zero_stage 1, or set zero_stage to 2"),
            (self.zero_stage and size == world.size, mesh.no_data_axis(TENSOR, size)),
        ])  # fmt: skip
        return Layout.of(world, (DATA, world.size // size), (TENSOR, size))

    def knobs(self, degrees: Degrees) -> dict[str, Any] | None:
        """Knobs for a tensor axis beside data, with ZeRO 0, 2 or 3; None beside any other axis."""
        if degrees.tensor == 1 or degrees.pipeline > 1 or degrees.zero == 1:
            return None
        more = {"sequence": degrees.sequence, "zero_stage": degrees.zero}
        return {"ranks": degrees.tensor} | {name: value for name, value in more.items() if value}

    def degrees(self, spec: RunSpec, layout: Layout) -> Degrees | None:
        """Also whether sequences are cut, and the stage of ZeRO."""
        found = super().degrees(spec, layout)
        cut = self.sequence and found is not None and found.tensor > 1
        return replace(found, sequence=cut, zero=self.zero_stage) if found else None

    def check_spec(self, spec: RunSpec) -> None:
        """Raise StudyError where the tensor axis does not divide heads, or sequences to be cut."""
        size = self.layout(spec.world).size(TENSOR)
        check_tensor_axis(spec, "ranks", size, sequence=self.sequence)

    def footprint(self, spec: RunSpec, layout: Layout, rank: int, gradients: int) -> Footprint:
        """Weights of products are cut; norms, positions and the biases of rows are not."""
        size = layout.size(TENSOR)
        share, kept = self._share(spec, size), kept_of_block(size, sequence=self.sequence)
        wide, several = widths(spec.precision).wide_gradients, layout.data_parallel > 1
        part = 1 / size
        bucket = bucket_bytes(spec.model, share * gradients, layers=part, ends=part)
        kept_of_all = Footprint(
            buffer_bytes=bucket if wide and several else 0, holds_gradients=several and not wide
        ).holding(share, share)
        if self.zero_stage:
            own = self._part(spec).of_block(spec, size)
            kept_of_all = replace(
                shards_by_fsdp(
                    spec, self.zero_stage, layout.data_parallel, spec.model.num_layers, *own
                ),
                held_share=share,
            )
        return replace(
            kept_of_all,
            copy_share=1 / size,
            activation_share=kept,
            input_share=1 / size if self.sequence else 1.0,
            block_share=kept,
            logit_share=1 / size,
        )

    def sends(self, spec: RunSpec, layout: Layout, rank: int, gradients: int) -> Sequence[Traffic]:
        """Activations, all-reduced along the tensor axis; gradients of the parts along the other.

        With cut sequences also the gradients of what no axis cuts.
        """
        data, size = layout.data_parallel, layout.size(TENSOR)
        tokens, part = spec.global_batch_tokens // data, self._part(spec)
        cuts, parameters = models.axis_cuts(spec.model), models.num_parameters(spec.model)
        uncut = parameters - cuts.parameters if self.sequence else cuts.partial
        # What FSDP2 has cut over the data axis is added up shard by shard.
        shards, added = (data, " + R/s") if self.zero_stage else (1, " + R")
        payload = part.all_reduced(spec, tokens) + gradients * uncut / parameters / shards
        formula = f"({part.blocks(spec)} + 2) A{part.router(spec)} + 12 T{added * self.sequence}"
        own = self._share(spec, size) * gradients
        averaged = along(layout, DATA, "2(n-1)/n G", 2 * own, overlap=True)
        if self.zero_stage:
            held = part.of_block(spec, size)
            averaged = sent_by_fsdp(spec, layout, self.zero_stage, own, *held)
        return (
            *along(layout, TENSOR, f"2(n-1)/n ({formula})", 2 * payload, part.messages(spec)),
            *averaged,
        )

    def _part(self, spec: RunSpec) -> Part:
        """All layers."""
        return Part(spec.model.num_layers, True, True, self.sequence)

    def _share(self, spec: RunSpec, size: int) -> float:
        """Share of all parameters that a rank holds."""
        cut = models.axis_cuts(spec.model).parameters / models.num_parameters(spec.model)
        return 1 - cut + cut / size

    def build(self, parts: Parts) -> Trainable:
        """Cut the layers along the tensor axis, wrap what is left along the data axis."""
        from pipeline.strategies.tensor.step import tensor_step

        return tensor_step(parts, sequence=self.sequence, zero_stage=self.zero_stage)
