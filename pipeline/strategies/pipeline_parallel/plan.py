"""Pipeline parallelism: GPipe, 1F1B, interleaved 1F1B or zero bubble, with a data axis.

Each rank holds consecutive layers. A micro-batch's activations are sent from stage to stage, their
gradients back; ranks wait while the pipeline fills and drains, the bubble, (p - 1) / m of their
computation for p ranks and m micro-batches under GPipe and 1F1B, (p - 1) / (v m) with v interleaved
chunks (Narayanan et al. 2021, arXiv 2104.04473; GPipe: Huang et al. 2019, arXiv 1811.06965).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from pipeline import models
from pipeline.cost.traffic import SEND, Traffic
from pipeline.errors import StudyError, refuse
from pipeline.parallel.mesh import BUCKET_BYTES, DATA, PIPELINE, Degrees, Layout, axis_size
from pipeline.parallel.types import Parts, Trainable
from pipeline.precision.widths import widths
from pipeline.strategies.base import Choices, Footprint, Strategy, along
from pipeline.strategies.pipeline_parallel import schedule as schedules
from pipeline.strategies.pipeline_parallel.schedule import Schedule, Stages
from pipeline.study.spec import RunSpec, WorldSpec


@dataclass(frozen=True)
class Pipelined(Strategy):
    """A strategy with a pipeline axis.

    `schedule`: gpipe, 1f1b, interleaved or zero_bubble. `chunks`: stages of a rank, 0 for the
    schedule's own. `microbatches`: into how many each micro-batch of the study is cut, 0 for so
    many that a step has one for each pipeline rank. `layers`: those of each stage, in their order;
    none given, they are as even as can be.
    """

    modules = ("torch.distributed.pipelining", "torch.distributed.tensor")
    needs_of_torch = ("torch.distributed.pipelining:Schedule1F1B.step(return_outputs)",)
    precisions = ("fp32", "tf32", "bf16", "fp16", "amp_o1", "bf16_masters", "bf16_reduced")
    choices: ClassVar[Choices] = (("schedule", tuple(schedules.CHUNKS)),)
    cuts_weights = True  # other stages are dropped

    schedule: str = "1f1b"
    chunks: int = 0
    microbatches: int = 0
    layers: list[int] = field(default_factory=list)

    def schedule_of(self, spec: RunSpec, layout: Layout) -> Schedule:
        """The schedule of a step; StudyError where layers and sequences do not fit it."""
        chunks = schedules.check_name(self.schedule, self.chunks)
        ranks = dict(layout.axes)[PIPELINE]
        stages = Stages(ranks, chunks, spec.model.num_layers, tuple(self.layers))
        work = spec.workload
        start, stop = layout.batch_slice(0, work.global_batch)
        return schedules.make(
            spec.run_id,
            self.schedule,
            stages,
            asked=self.microbatches,
            sequences=max(1, (stop - start) // work.accumulation_steps),
            accumulation=work.accumulation_steps,
        )

    def pieces(self, spec: RunSpec, layout: Layout) -> int:
        """Those of the pipeline."""
        return self.schedule_of(spec, layout).microbatches

    def degrees(self, spec: RunSpec, layout: Layout) -> Degrees | None:
        """Also the schedule, the chunks of a rank, and the layers of stages that are stated."""
        stages, found = self.schedule_of(spec, layout).stages, super().degrees(spec, layout)
        if found is None:
            return None
        return replace(found, chunks=stages.chunks, layers=stages.sizes, schedule=self.schedule)

    def passes(self, degrees: Degrees) -> dict[str, Any]:
        """Knobs of the schedule: interleaved where a rank has several stages.

        GPipe where there are fewer micro-batches than ranks, which torch's 1F1B refuses.
        """
        knobs: dict[str, Any] = {"microbatches": degrees.microbatches}
        if degrees.chunks > 1:
            knobs |= {"schedule": "interleaved", "chunks": degrees.chunks}
        elif degrees.microbatches < degrees.pipeline:
            knobs |= {"schedule": "gpipe"}
        return knobs | ({"layers": list(degrees.layers)} if degrees.layers else {})

    def idle_share(self, spec: RunSpec) -> float:
        """The bubble's share of a step, see `Schedule.bubble`."""
        return self.schedule_of(spec, self.layout(spec.world)).idle_share

    def check_spec(self, spec: RunSpec) -> None:
        """Raise StudyError where layers, sequences and schedule do not fit together."""
        self.schedule_of(spec, self.layout(spec.world))
        models.family(spec.model).ends(spec.model)  # raises where it has no stages
        again, splits = spec.workload.recompute, self.schedule == "zero_bubble"
        refuse(StudyError, f"{spec.run_id}: ", [
            (splits and spec.compile,
             "schedule zero_bubble splits the backward pass, which torch does not do in compiled "
             "blocks; set compile to false, or schedule to 1f1b"),
            (isinstance(again, tuple),
             "workload.recompute names blocks, of which stages would keep unequal numbers; "
             f"strategy {spec.strategy} takes none, full or attention"),
            (splits and again is True,
             "schedule zero_bubble splits the backward pass, each part of which would recompute "
             "its block; set workload.recompute to none or attention, or schedule to 1f1b"),
        ])  # fmt: skip

    def footprint(self, spec: RunSpec, layout: Layout, rank: int, gradients: int) -> Footprint:
        """The layers of a rank's stages, and the activations of the micro-batches in flight."""
        place = layout.coordinate(rank)[PIPELINE]
        schedule = self.schedule_of(spec, layout)
        stages = schedule.stages
        layers, is_first, is_last = stages.held_by(place)
        sizes = models.family(spec.model)
        own = layers * sizes.layer_parameters(spec.model)
        own += sizes.ends(spec.model).held(is_first, is_last)
        share = own / models.num_parameters(spec.model)
        cut = schedule.microbatches // spec.workload.accumulation_steps
        model, products = spec.model, sizes.product_weights(spec.model)
        head, flight = model.vocab_rows * model.width, schedule.in_flight(place)
        activations = flight * layers / (stages.chunks * spec.model.num_layers * cut)
        return Footprint(
            buffer_bytes=int(min(BUCKET_BYTES, share * gradients)) if layout.averaging > 1 else 0,
            holds_gradients=schedule.microbatches > 1,
            weight_share=share,
            gradient_share=share,
            optimiser_share=share,
            held_share=share,
            # the weights of products: those of the layers, and of the output layer
            copy_share=(layers * (products - head) / model.num_layers + head * is_last) / products,
            activation_share=activations,
            input_share=activations,
            block_share=1 / cut,
            # log-probabilities of the last stage's micro-batches, two gradients of one of them
            logit_share=(flight / stages.chunks + 2) / (3 * cut) if is_last else 0.0,
        )

    def sends(self, spec: RunSpec, layout: Layout, rank: int, gradients: int) -> Sequence[Traffic]:
        """Activations to the next stage, their gradients to the one before; sums of gradients."""
        tied = models.family(spec.model).ends(spec.model).shared
        tied_share = tied / models.num_parameters(spec.model)
        share = self.footprint(spec, layout, rank, gradients).weight_share
        return (
            *self.sends_between_stages(spec, layout, rank, tied_share * gradients),
            *along(layout, DATA, "2(n-1)/n G", 2 * share * gradients),
        )

    def sends_between_stages(
        self, spec: RunSpec, layout: Layout, rank: int, tied: float, parts: int = 1
    ) -> Sequence[Traffic]:
        """Bytes that a rank sends along the pipeline; nothing where it has one rank alone.

        The first and the last rank add up the gradients of a tied embedding, `tied` bytes.
        `parts`: ranks over which sequences are cut, each of which sends its own tokens.
        """
        stages = self.schedule_of(spec, layout).stages
        if stages.ranks < 2:
            return ()
        line, last = layout.along(PIPELINE, rank), stages.count - 1
        own = stages.of_rank(line.index(rank))
        neighbours = [s + to for s in own for to in (1, -1) if 0 <= s + to <= last]
        # Each of its stages sends the whole batch ahead, and the gradients of its input back.
        peers = [peer for s in neighbours if (peer := line[stages.rank_of(s)]) != rank]
        tokens = spec.global_batch_tokens // layout.data_parallel
        each = widths(spec.precision).stream * tokens * spec.model.width // parts
        sent = [(each, (rank, peer)) for peer in peers]
        ends = (line[stages.rank_of(0)], line[stages.rank_of(last)])
        if ends[0] != ends[1] and rank in ends:
            sent.append((int(tied), ends))
        between = "A" if parts == 1 else f"A/{parts}"
        formula = f"{between} for each neighbouring stage"
        if tied:
            formula += ", first and last rank: G of the tied embedding"
        # The tied embedding's gradients are counted in the size of the others.
        messages = len(peers) * self.pieces(spec, layout)
        leaving = sum(size for size, pair in sent if layout.leaves_node(rank, pair))
        total = sum(size for size, _ in sent)
        return (Traffic(PIPELINE, formula, total, messages, SEND, leaving=leaving),)


@dataclass(frozen=True)
class PipelineParallel(Pipelined):
    """`ranks`: size of the pipeline axis, 0 for all ranks; the rest are data-parallel."""

    variants = (
        {"ranks": 2, "schedule": "gpipe"},
        {"ranks": 2, "schedule": "interleaved"},
        {"schedule": "zero_bubble"},
    )

    use = "layers do not fit one device, and links are slow"
    split = "layers, by stages: weights, gradients, optimiser state, activations"

    ranks: int = 0

    def layout(self, world: WorldSpec) -> Layout:
        """Axes (pipeline, data); StudyError where the pipeline does not divide the ranks."""
        schedules.check_name(self.schedule, self.chunks)
        size = axis_size("pipeline_parallel", PIPELINE, self.ranks, world)
        return Layout.of(world, (PIPELINE, size), (DATA, world.size // size))

    def knobs(self, degrees: Degrees) -> dict[str, Any] | None:
        """The pipeline axis, beside the data axis alone."""
        alone = degrees.pipeline > 1 and degrees.tensor == 1 and not degrees.zero
        return {"ranks": degrees.pipeline, **self.passes(degrees)} if alone else None

    def build(self, parts: Parts) -> Trainable:
        """Keep this rank's stages of the model, and run micro-batches through all of them."""
        from pipeline.strategies.pipeline_parallel.step import PipelineStepper

        return PipelineStepper(parts, self)
