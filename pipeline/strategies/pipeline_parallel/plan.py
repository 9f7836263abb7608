"""Pipeline parallelism: GPipe, 1F1B, interleaved 1F1B or zero bubble, with a data axis.

Each rank holds consecutive layers. A micro-batch's activations are sent from stage to stage, their
gradients back; ranks wait while the pipeline fills and drains: the `bubble`. Schedule `gpipe` runs
all forward passes, then all backward passes (Huang et al. 2019, arXiv 1811.06965); `1f1b`
alternates them, so that fewer activations are kept; `interleaved` gives each rank several stages
(both Narayanan et al. 2021, arXiv 2104.04473); `zero_bubble` splits the backward pass in two and
computes gradients of weights where a rank would wait (Qi et al. 2023, arXiv 2401.10241).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from pipeline import models
from pipeline.cost.schedule import ONE_STAGE, in_flight
from pipeline.cost.traffic import SEND, Traffic
from pipeline.errors import StudyError, refuse
from pipeline.parallel import mesh
from pipeline.parallel.mesh import DATA, PIPELINE, Degrees, Layout
from pipeline.parallel.types import Parts, Trainable
from pipeline.precision.widths import widths
from pipeline.strategies.base import Choices, Footprint, Strategy, along, bucket_bytes
from pipeline.study.spec import RunSpec, WorldSpec

CHUNKS = {"gpipe": 1, "1f1b": 1, "interleaved": 2, "zero_bubble": 1}
"""Stages of a rank by schedule, unless the study says otherwise."""


@dataclass(frozen=True)
class Stages:
    """`ranks` x `chunks` consecutive stages of `layers` layers; stage s is on rank s modulo ranks.

    Where they do not divide the layers, the first stages have one more: the last has the logits.
    `sizes`, where there are any, are the layers of each stage instead.
    """

    ranks: int
    chunks: int
    layers: int
    sizes: tuple[int, ...] = ()

    @property
    def count(self) -> int:
        """Number of stages."""
        return self.ranks * self.chunks

    def rank_of(self, stage: int) -> int:
        """The pipeline rank that holds a stage."""
        return stage % self.ranks

    def of_rank(self, rank: int) -> list[int]:
        """The stages of a pipeline rank, in their order."""
        return list(range(rank, self.count, self.ranks))

    def layers_of(self, stage: int) -> range:
        """The layers of a stage."""
        if self.sizes:
            start = sum(self.sizes[:stage])
            return range(start, start + self.sizes[stage])
        each, more = divmod(self.layers, self.count)
        start = stage * each + min(stage, more)
        return range(start, start + each + (stage < more))

    def held_by(self, rank: int) -> tuple[int, bool, bool]:
        """Layers of a pipeline rank, and whether the first and the last stage are among its own."""
        layers = sum(len(self.layers_of(stage)) for stage in self.of_rank(rank))
        return layers, rank == self.rank_of(0), rank == self.rank_of(self.count - 1)


def bubble(schedule: str, ranks: int, chunks: int, microbatches: int) -> float:
    """Idle time of a rank / time of its computation: (p - 1) / (v m) (Narayanan et al. 2021).

    For p ranks, v chunks, m micro-batches, equal stages and free communication. `zero_bubble`
    leaves a third of it where forward pass and both halves of the backward pass take equal time
    (ZB-H1 of Qi et al. 2023).
    """
    share = (ranks - 1) / (chunks * microbatches)
    return share / 3 if schedule == "zero_bubble" else share


def pieces(asked: int, sequences: int, accumulation: int, ranks: int) -> int:
    """Into how many micro-batches of the pipeline each of the study's `accumulation` ones is cut.

    `sequences` are those of one of the study's. `asked` 0 is the least number with which a step has
    one for each rank, all sequences where there are fewer.
    """
    if asked:
        return asked
    return next((n for n in mesh.divisors(sequences) if n * accumulation >= ranks), sequences)


def rounds(microbatches: int, ranks: int) -> int:
    """Rounds in which interleaved schedules of torch let micro-batches pass."""
    return max(1, microbatches // ranks)


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
    choices: ClassVar[Choices] = (("schedule", tuple(CHUNKS)),)
    cuts_weights = True  # other stages are dropped

    schedule: str = "1f1b"
    chunks: int = 0
    microbatches: int = 0
    layers: list[int] = field(default_factory=list)

    def rank_stages(self) -> int:
        """Stages of a rank; StudyError where the schedule cannot have as many."""
        refuse(StudyError, f"pipeline schedule {self.schedule} ", [
            (self.schedule in ONE_STAGE and self.chunks > 1,
             f"has one stage on each rank, given {self.chunks} chunks; set the cell's option "
             "chunks to 1, or schedule to interleaved"),
            (self.schedule == "interleaved" and self.chunks == 1,
             "needs 2 chunks or more on each rank, given 1; set the cell's option chunks to 2, or "
             "schedule to 1f1b"),
        ])  # fmt: skip
        return self.chunks or CHUNKS[self.schedule]

    def stages(self, ranks: int, layers: int) -> Stages:
        """The stages of a model of so many layers."""
        return Stages(ranks, self.rank_stages(), layers, tuple(self.layers))

    def scheduled(self, spec: RunSpec, layout: Layout) -> tuple[Stages, int]:
        """Stages, and micro-batches of a step; StudyError where layers and sequences do not fit."""
        stages, work = self.stages(layout.size(PIPELINE), spec.model.num_layers), spec.workload
        ranks, chunks, layers = stages.ranks, stages.chunks, stages.layers
        if stages.count > layers:
            fewer = chunks if chunks <= layers else 1
            raise StudyError(
                f"{spec.run_id}: {ranks} pipeline ranks x {chunks} chunks are {stages.count} "
                f"stages, but the model has {layers} layers, and each stage needs one; the "
                f"nearest that fits is {layers // fewer} ranks x {fewer} chunks, or "
                f"model.num_layers {stages.count}"
            )
        counts = all(type(size) is int and size > 0 for size in self.layers)
        fit = counts and (len(self.layers), sum(self.layers)) == (stages.count, layers)
        accumulation = work.accumulation_steps
        sequences = max(1, work.global_batch // layout.data_parallel // accumulation)
        cut = pieces(self.microbatches, sequences, accumulation, ranks)
        total = cut * accumulation
        refuse(StudyError, f"{spec.run_id}: ", [
            (self.layers and not fit,
             f"option layers is {self.layers}, but the {layers} layers are cut into "
             f"{stages.count} stages; give so many whole numbers from 1 that add up to "
             f"{layers}, or leave it out"),
            (sequences % cut,
             f"{cut} pipeline micro-batches do not divide the {sequences} sequences of one of the "
             "study's micro-batches on a rank; the nearest option microbatches is "
             f"{mesh.nearest(cut, sequences)}"),
            (self.schedule == "1f1b" and total < ranks,
             f"schedule 1f1b passes {total} micro-batches through {ranks} pipeline ranks, and "
             "torch's needs one for each; set schedule to gpipe, or more of them"),
        ])  # fmt: skip
        if self.schedule not in ONE_STAGE and total % rounds(total, ranks):
            fitting = [n for n in mesh.divisors(sequences)
                       if n * accumulation % rounds(n * accumulation, ranks) == 0]  # fmt: skip
            instead = min(fitting, key=lambda n: abs(n - cut), default=None)
            raise StudyError(
                f"{spec.run_id}: schedule {self.schedule} passes {total} micro-batches "
                f"({accumulation} x {cut}) through {ranks} pipeline ranks in "
                f"{rounds(total, ranks)} rounds, which do not divide them; "
                + ("set schedule to 1f1b" if instead is None else f"set microbatches to {instead}")
            )
        return stages, total

    def pieces(self, spec: RunSpec, layout: Layout) -> int:
        """Those of the pipeline."""
        return self.scheduled(spec, layout)[1]

    def degrees(self, spec: RunSpec, layout: Layout) -> Degrees | None:
        """Also the schedule, the chunks of a rank, and the layers of stages that are stated."""
        (stages, _), found = self.scheduled(spec, layout), super().degrees(spec, layout)
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
        """Idle time of a rank / time of the step, which has the `bubble` in it."""
        stages, microbatches = self.scheduled(spec, self.layout(spec.world))
        idle = bubble(self.schedule, stages.ranks, stages.chunks, microbatches)
        return idle / (1 + idle)

    def check_spec(self, spec: RunSpec) -> None:
        """Raise StudyError where layers, sequences and schedule do not fit together."""
        stages, _ = self.scheduled(spec, self.layout(spec.world))
        models.family(spec.model).ends(spec.model)  # raises where it has no stages
        mixture = models.experts(spec.model)
        again, splits = spec.workload.recompute, self.schedule == "zero_bubble"
        refuse(StudyError, f"{spec.run_id}: ", [
            (mixture and mixture.balance and stages.count > 1,
             f"{spec.model.architecture} has a router's loss over all layers, which lie on several "
             "stages; set model.config.router_aux_loss_coef to 0, or use one stage"),
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
        stages, microbatches = self.scheduled(spec, layout)
        place = layout.coordinate(rank)[PIPELINE]
        layers, is_first, is_last = stages.held_by(place)
        model, sizes = spec.model, models.family(spec.model)
        own = layers * sizes.layer_parameters(model) + sizes.ends(model).held(is_first, is_last)
        share = own / models.num_parameters(model)
        cut = microbatches // spec.workload.accumulation_steps
        head, products = model.vocab_rows * model.width, sizes.product_weights(model)
        flight = in_flight(self.schedule, stages.ranks, stages.chunks, microbatches, place)
        activations = flight * layers / (stages.chunks * model.num_layers * cut)
        ends = float(is_first or is_last)
        bucket = bucket_bytes(spec.model, share * gradients, ends=ends)
        return Footprint(
            buffer_bytes=bucket if layout.averaging > 1 else 0,
            holds_gradients=microbatches > 1,
            # the weights of products: those of the layers, and of the output layer
            copy_share=(layers * (products - head) / model.num_layers + head * is_last) / products,
            activation_share=activations,
            input_share=activations,
            block_share=1 / cut,
            # log-probabilities of the last stage's micro-batches, two gradients of one of them
            logit_share=(flight / stages.chunks + 2) / (3 * cut) if is_last else 0.0,
        ).holding(share, share)

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
        stages, microbatches = self.scheduled(spec, layout)
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
        messages = len(peers) * microbatches
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
        self.rank_stages()
        size = mesh.axis_size("pipeline_parallel", PIPELINE, self.ranks, world)
        return Layout.of(world, (PIPELINE, size), (DATA, world.size // size))

    def knobs(self, degrees: Degrees) -> dict[str, Any] | None:
        """The pipeline axis, beside the data axis alone."""
        alone = degrees.pipeline > 1 and degrees.tensor == 1 and not degrees.zero
        return {"ranks": degrees.pipeline, **self.passes(degrees)} if alone else None

    def build(self, parts: Parts) -> Trainable:
        """Keep this rank's stages of the model, and run micro-batches through all of them."""
        from pipeline.strategies.pipeline_parallel.step import PipelineStepper

        return PipelineStepper(parts, self)
