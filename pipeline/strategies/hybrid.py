"""Hybrid: data x tensor x pipeline on one mesh, the 3D layout of Megatron-LM and MT-NLG.

Layers are stages of a pipeline, each of them is cut over the tensor axis (Narayanan et al. 2021,
arXiv 2104.04473; Smith et al. 2022, arXiv 2201.11990), and gradients are averaged along the data
axis, over which ZeRO's stage 1 may shard the optimiser's state, or FSDP2 what a stage has. A
context axis makes it the 4D layout of Llama 3 (arXiv 2407.21783), an expert axis cuts a mixture as
DeepSpeed-TED does (Singh et al. 2023, arXiv 2303.06318).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from pipeline import models
from pipeline.cost.traffic import Traffic, one_of_each_axis
from pipeline.errors import StudyError, UnsupportedError, refuse
from pipeline.parallel import mesh
from pipeline.parallel.mesh import CONTEXT, DATA, EXPERT, PIPELINE, TENSOR, Degrees, Layout
from pipeline.parallel.types import Parts, Trainable
from pipeline.precision.widths import widths
from pipeline.strategies.base import Footprint, along, bucket_bytes
from pipeline.strategies.context import plan as contexts
from pipeline.strategies.expert import plan as experts
from pipeline.strategies.pipeline_parallel.plan import Pipelined
from pipeline.strategies.sharded.plan import Sharded, rows_of_stage_1, shards_by_fsdp
from pipeline.strategies.tensor.plan import Part, check_tensor_axis, kept_of_block
from pipeline.study.spec import RunSpec, WorldSpec


@dataclass(frozen=True)
class Hybrid(Pipelined):
    """`pipeline`, `tensor`, `context`, `expert` and `data`: sizes of axes, `data` 0 for the rest.

    `context`: ranks that cut the positions of each sequence, as with strategy context. `expert`:
    ranks that share the experts of a mixture, and read parts of the batch, as with strategy expert.
    `zero_stage`: 0, or along these and the data axis 1 to shard the optimiser's state; or 2, not
    beside experts, to cut stages by FSDP2, whose weights are whole while the passes of a step run.
    `sequence`: as with strategy tensor; stages send parts of sequences.
    `inside`: the axis whose ranks are neighbours, `tensor` or `pipeline`, and so share a node.
    """

    choices = (*Pipelined.choices, ("zero_stage", (0, 1, 2, 3)), ("inside", (TENSOR, PIPELINE)))
    ranges = tuple((axis, 1, 1_000_000) for axis in (PIPELINE, TENSOR, CONTEXT, EXPERT))
    variants = (
        {"tensor": 1, "zero_stage": 1},
        {"pipeline": 1, "zero_stage": 1},
        {"sequence": True},
        {"inside": PIPELINE},
        {"tensor": 1, "zero_stage": 2},
        {"pipeline": 1, "context": 2},
        {"tensor": 1, "context": 2},
        {"pipeline": 1, "tensor": 1, "context": 2, "zero_stage": 1},
        {"pipeline": 1, "expert": 2},
        {"tensor": 1, "expert": 2},
        {"pipeline": 1, "expert": 2, "zero_stage": 1},
    )

    use = "no single axis makes the model fit; tensor ranks send more, so they share a node"

    pipeline: int = 2
    tensor: int = 2
    context: int = 1
    expert: int = 1
    data: int = 0
    zero_stage: int = 0
    sequence: bool = False
    inside: str = TENSOR

    @property
    def example(self) -> str:
        """A mixture where experts are cut."""
        return experts.Expert.example if self.expert > 1 else ""

    def layout(self, world: WorldSpec) -> Layout:
        """Axes (pipeline, data, context, expert, tensor), tensor ranks neighbours.

        In the reverse order with stages inside a node. StudyError unless they fit the world.
        """
        self.rank_stages()
        refuse(StudyError, f"hybrid option expert {self.expert}: ", [
            (self.expert > 1 and self.zero_stage > 1,
             f"not offered beside zero_stage {self.zero_stage}, since FSDP2 would cut experts over "
             "the ranks that hold others; set zero_stage to 1"),
        ])  # fmt: skip
        sizes = {PIPELINE: self.pipeline, TENSOR: self.tensor}
        sizes |= {CONTEXT: self.context} if self.context > 1 else {}
        sizes |= {EXPERT: self.expert} if self.expert > 1 else {}
        sizes[DATA] = self.data or max(1, world.size // math.prod(sizes.values()))
        if (ranks := math.prod(sizes.values())) != world.size:
            near, left = dict(sizes), world.size
            for axis in (TENSOR, PIPELINE, CONTEXT, EXPERT):
                if axis in sizes:
                    near[axis] = mesh.nearest(sizes[axis], left)
                    left //= near[axis]
            raise StudyError(
                f"strategy hybrid: {mesh.product(sizes)} are {ranks} ranks, the world has "
                f"{world.size}; the nearest layout is {mesh.product(near | {DATA: left})}"
            )
        if self.zero_stage > 1:
            self._check_fsdp(sizes[DATA] * self.context)
        order = (PIPELINE, DATA, CONTEXT, EXPERT, TENSOR)
        axes = [(axis, sizes[axis]) for axis in order if axis in sizes]
        return Layout.of(world, *(axes if self.inside == TENSOR else reversed(axes)))

    def _check_fsdp(self, data: int) -> None:
        """Raise StudyError where FSDP2 cannot cut the stages over so many data ranks."""
        sizes = {PIPELINE: self.pipeline, TENSOR: self.tensor, DATA: 1}
        most = TENSOR if self.tensor > 1 else PIPELINE
        fewer = mesh.divisors(sizes[most])[-2:][0]
        near = sizes | {most: fewer, DATA: sizes[most] // fewer}
        refuse(StudyError, f"hybrid option zero_stage {self.zero_stage}: ", [
            (self.pipeline == 1 and self.context > 1,
             f"beside {self.context} context ranks strategy context has it, without a tensor axis; "
             "set zero_stage to 1, or pipeline to 2 or more"),
            (self.pipeline == 1,
             f"strategy tensor has it where there are no stages; use that with ranks {self.tensor}"
             f", zero_stage {self.zero_stage}, or set pipeline to 2 or more"),
            (self.zero_stage == 3,
             f"beside {self.pipeline} pipeline ranks torch frees gathered weights only after a "
             "forward pass; set zero_stage to 2, which gathers them once a step"),
            (data == 1,
             f"{mesh.product(sizes)} has no data axis to cut over; the nearest is "
             f"{mesh.product(near)}, or set zero_stage to 0"),
        ])  # fmt: skip

    def check(self) -> None:
        """Besides what FSDP2 needs of torch."""
        super().check()
        if self.zero_stage == 2:
            Sharded(2).check()

    def check_precision(self, name: str) -> None:
        """Besides, torch adds up what its split backward pass makes in FSDP2's narrow weights."""
        super().check_precision(name)
        split = self.zero_stage == 2 and self.schedule == "zero_bubble"
        if split and widths(name).wide_gradients:
            raise UnsupportedError(
                f"hybrid option zero_stage 2: under schedule zero_bubble gradients of {name} would "
                "add up over micro-batches in bfloat16, not in fp32; set schedule to 1f1b"
            )

    def degrees(self, spec: RunSpec, layout: Layout) -> Degrees | None:
        """Also the stage of ZeRO, whether sequences are cut, and which ranks are neighbours.

        Under stage 2 weights are gathered and gradients reduced once a step, as under stage 1; the
        cost model's stage 2 does both in each micro-batch. It has no context axis, and an expert
        axis beside that of the data alone.
        """
        found = super().degrees(spec, layout)
        if found is None or self.context * self.expert > 1:
            return None
        cut, zero = self.sequence and self.tensor > 1, min(1, self.zero_stage)
        return replace(found, zero=zero, sequence=cut, inside=self.inside)

    def knobs(self, degrees: Degrees) -> dict[str, Any] | None:
        """Axes of stages and tensors together, or one of them with ZeRO's stage 1."""
        cut = (degrees.pipeline > 1) + (degrees.tensor > 1)
        if degrees.zero > 1 or cut + degrees.zero < 2 or not cut:
            return None
        asked = {"zero_stage": degrees.zero, "sequence": degrees.sequence, "inside": degrees.inside}
        others = {knob: value for knob, value in asked.items() if value != getattr(Hybrid, knob)}
        sizes = {"pipeline": degrees.pipeline, "tensor": degrees.tensor}
        return {**sizes, **others, **self.passes(degrees)}

    def check_spec(self, spec: RunSpec) -> None:
        """Raise StudyError where layers, heads, sequences and experts do not fit the axes."""
        super().check_spec(spec)
        check_tensor_axis(spec, "tensor", self.tensor, sequence=self.sequence)
        if self.context > 1:
            cut_again = self.tensor if self.sequence else 1
            contexts.check_context_axis(spec, "context", self.context, cut_again)
        if self.expert > 1:
            ranks = self.layout(spec.world).data_parallel
            experts.check_expert_axis(spec, "expert", self.expert, ranks)

    def footprint(self, spec: RunSpec, layout: Layout, rank: int, gradients: int) -> Footprint:
        """Shares of a stage, cut as with strategy tensor."""
        stage = super().footprint(spec, layout, rank, gradients)
        part = self._part(spec, layout, rank)
        rest, own_experts = self._held(spec, layout, rank)
        parameters = models.num_parameters(spec.model)
        weights = (rest + own_experts) / parameters
        data = layout.averaging if self.zero_stage else 1
        # Rows of experts lie over the data axis alone, but a rank has fewer of them to begin with.
        owned = (rest + self.expert * own_experts) / parameters / data if data > 1 else weights
        layers = 1 / self.tensor / self.expert
        ends = (part.is_first or part.is_last) / self.tensor
        if data > 1:
            rows = rows_of_stage_1(
                spec, layout, gradients, weights, owned, layers=layers, ends=ends
            )
        else:
            bucket = bucket_bytes(spec.model, weights * gradients, layers=layers, ends=ends)
            rows = replace(stage, buffer_bytes=bucket if layout.averaging > 1 else 0)
        kept, masks = kept_of_block(self.tensor, sequence=self.sequence), 0
        if self.context > 1:
            kept = contexts.kept_of_cut_sequences(spec, self.context, self.tensor, kept)
            masks = contexts.mask_bytes(spec, self.context)
        cut_stage = replace(
            stage.holding(weights, owned),
            buffer_bytes=rows.buffer_bytes,
            holds_gradients=stage.holds_gradients or rows.holds_gradients,
            gathered_bytes=rows.gathered_bytes + masks,
            copy_share=stage.copy_share / self.tensor,
            activation_share=stage.activation_share * kept,
            input_share=stage.input_share / self.context / (self.tensor if self.sequence else 1),
            block_share=stage.block_share * kept,
            logit_share=stage.logit_share / self.tensor / self.context,
        )
        if self.zero_stage < 2:
            return cut_stage
        groups = part.of_block(spec, self.tensor)
        shards = shards_by_fsdp(spec, 2, data, part.layers, *groups)
        copy = widths(spec.precision).gradient * max(groups)
        return replace(
            cut_stage,
            # All gradients are whole until the first group's are copied to be reduced.
            buffer_bytes=int(weights * gradients + copy),
            holds_gradients=stage.holds_gradients,
            gathered_bytes=shards.gathered_bytes + masks,
            weight_share=shards.weight_share,
            gradient_share=shards.gradient_share,
        )

    @property
    def split(self) -> str:
        """Layers by stages, each of them by its products."""
        over_data = "", "the optimiser state", "what is kept between steps"
        more = f", {over_data[self.zero_stage]} also over data" if self.zero_stage else ""
        cut = "; activations, by positions of each sequence" if self.context > 1 else ""
        cut += "; experts" if self.expert > 1 else ""
        return f"layers, by stages and within them{more}{cut}"

    def sends(self, spec: RunSpec, layout: Layout, rank: int, gradients: int) -> Sequence[Traffic]:
        """As `tensor` of this rank's stages, between them, and along the data axis.

        With sequence parallelism stages send parts of sequences, and a rank all-reduces along the
        tensor axis the gradients of what its stages hold uncut: another number on each stage.
        """
        part, cuts = self._part(spec, layout, rank), models.axis_cuts(spec.model)
        tokens = spec.global_batch_tokens / layout.averaging
        payload = part.all_reduced(spec, tokens)
        each = gradients / models.num_parameters(spec.model)
        data = layout.averaging if self.zero_stage else 1
        uncut, _ = part.parameters(spec)
        rest, own_experts = (each * count for count in self._held(spec, layout, rank))
        own = rest + own_experts
        tied = each * cuts.ends.shared / self.tensor
        over = f"/{self.context}" if self.context > 1 else ""
        if part.sequence:
            payload += each * uncut / data
        else:
            payload += each * cuts.partial * part.layers / spec.model.num_layers / data
        blocks = f"{part.blocks(spec)} A{over}{part.router(spec)}" + " + R" * part.sequence
        formula = f"{blocks}, first stage: + A{over}, last stage: + A{over} + 12 T{over}"
        gathered = own * widths(spec.precision).weight / each if self.zero_stage else 0.0
        reduced = own if data > 1 else 2 * own
        cut_in = self.context * (self.tensor if part.sequence else 1)
        pieces = self.pieces(spec, layout)
        messages = part.messages(spec, pieces)
        zero = bool(self.zero_stage)
        over_data: Sequence[Traffic]
        if self.expert > 1:
            averaged = experts.sent_along(
                spec,
                layout,
                rank,
                layers=part.layers,
                pieces=pieces,
                experts=own_experts,
                rest=rest,
                zero=zero,
            )
            keys, payload_of_keys, gathers = contexts.of_keys(
                spec, layout, part.layers, pieces, self.tensor
            )
            over_data = one_of_each_axis(
                *along(layout, CONTEXT, f"(n-1)/n ({keys})", payload_of_keys, gathers, halves=True),
                *averaged,
            )
        else:
            over_data = contexts.sent_along(
                spec,
                layout,
                layers=part.layers,
                pieces=pieces,
                reduced=reduced + gathered,
                formula="G + W" if zero else "2 G",
                halves=zero,
                heads=self.tensor,
            )
        return (
            *along(layout, TENSOR, f"2(n-1)/n ({formula})", 2 * payload, messages),
            *self.sends_between_stages(spec, layout, rank, tied / data, cut_in),
            *over_data,
        )

    def _held(self, spec: RunSpec, layout: Layout, rank: int) -> tuple[float, float]:
        """Parameters of a rank: all but experts, and its experts where an expert axis cuts them."""
        part = self._part(spec, layout, rank)
        uncut, cut = part.parameters(spec)
        of_layer = experts.share_of_experts(spec) * models.num_parameters(spec.model)
        mixture = of_layer * part.layers / spec.model.num_layers if self.expert > 1 else 0.0
        return uncut + (cut - mixture) / self.tensor, mixture / self.tensor / self.expert

    def _part(self, spec: RunSpec, layout: Layout, rank: int) -> Part:
        """The layers of this rank's stages."""
        place, (stages, _) = layout.coordinate(rank)[PIPELINE], self.scheduled(spec, layout)
        return Part(*stages.held_by(place), sequence=self.sequence and self.tensor > 1)

    def build(self, parts: Parts) -> Trainable:
        """The step of a pipeline, whose layers are cut and whose optimiser may be sharded."""
        from pipeline.strategies.pipeline_parallel.step import PipelineStepper

        return PipelineStepper(parts, self, sequence=self.sequence, zero_stage=self.zero_stage)
