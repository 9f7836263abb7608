"""Layers of each rank of a pipeline, and the order in which micro-batches pass (no torch).

Schedules: `gpipe` runs all forward passes, then all backward passes (Huang et al. 2019, arXiv
1811.06965); `1f1b` alternates them, so that fewer activations are kept; `interleaved` gives each
rank several stages (both Narayanan et al. 2021, arXiv 2104.04473); `zero_bubble` splits the
backward pass in two and computes gradients of weights where a rank would wait (Qi et al. 2023,
arXiv 2401.10241).
"""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.cost.schedule import ONE_STAGE, Pass, in_flight, order
from pipeline.errors import StudyError, refuse
from pipeline.parallel.mesh import divisors, nearest

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


@dataclass(frozen=True)
class Schedule:
    """`microbatches` pass in a step through the pipeline of `stages`."""

    name: str
    stages: Stages
    microbatches: int

    @property
    def bubble(self) -> float:
        """Idle time of a rank / time of its computation: (p - 1) / (v m) (Narayanan et al. 2021).

        For p ranks, v chunks, m micro-batches, equal stages and free communication. `zero_bubble`
        leaves a third of it where forward pass and both halves of the backward pass take equal
        time (ZB-H1 of Qi et al. 2023).
        """
        share = (self.stages.ranks - 1) / (self.stages.chunks * self.microbatches)
        return share / 3 if self.name == "zero_bubble" else share

    @property
    def idle_share(self) -> float:
        """Idle time of a rank / time of the step, which has the bubble in it."""
        return self.bubble / (1 + self.bubble)

    def passes(self, rank: int) -> list[Pass]:
        """Kind, stage and micro-batch of each pass of a pipeline rank, in their order."""
        return order(self.name, self.stages.ranks, self.stages.chunks, self.microbatches, rank)

    def in_flight(self, rank: int) -> int:
        """Stages x micro-batches whose activations a pipeline rank keeps at its peak."""
        return in_flight(self.name, self.stages.ranks, self.stages.chunks, self.microbatches, rank)


def check_name(schedule: str, chunks: int) -> int:
    """Chunks of a rank under a schedule, 0 for its own; StudyError where they do not fit."""
    refuse(StudyError, f"pipeline schedule {schedule} ", [
        (schedule in ONE_STAGE and chunks > 1,
         f"has one stage on each rank, given {chunks} chunks; set the cell's option chunks to 1, "
         "or schedule to interleaved"),
        (schedule == "interleaved" and chunks == 1,
         "needs 2 chunks or more on each rank, given 1; set the cell's option chunks to 2, or "
         "schedule to 1f1b"),
    ])  # fmt: skip
    return chunks or CHUNKS[schedule]


def pieces(asked: int, sequences: int, accumulation: int, ranks: int) -> int:
    """Into how many micro-batches of the pipeline each of the study's `accumulation` ones is cut.

    `sequences` are those of one of the study's. `asked` 0 is the least number with which a step has
    one for each rank, all sequences where there are fewer.
    """
    if asked:
        return asked
    return next((n for n in divisors(sequences) if n * accumulation >= ranks), sequences)


def make(
    run: str, name: str, stages: Stages, *, asked: int, sequences: int, accumulation: int
) -> Schedule:
    """The schedule of a step, arguments as in `pieces`; StudyError, naming `run`, for misfits."""
    if stages.count > stages.layers:
        chunks = stages.chunks if stages.chunks <= stages.layers else 1
        raise StudyError(
            f"{run}: {stages.ranks} pipeline ranks x {stages.chunks} chunks are {stages.count} "
            f"stages, but the model has {stages.layers} layers, and each stage needs one; the "
            f"nearest that fits is {stages.layers // chunks} ranks x {chunks} chunks, or "
            f"model.num_layers {stages.count}"
        )
    sizes = stages.sizes
    counts = all(type(size) is int and size > 0 for size in sizes)
    fit = counts and (len(sizes), sum(sizes)) == (stages.count, stages.layers)
    cut = pieces(asked, sequences, accumulation, stages.ranks)
    total = cut * accumulation
    refuse(StudyError, f"{run}: ", [
        (sizes and not fit,
         f"option layers is {list(sizes)}, but the {stages.layers} layers are cut into "
         f"{stages.count} stages; give so many whole numbers from 1 that add up to "
         f"{stages.layers}, or leave it out"),
        (sequences % cut,
         f"{cut} pipeline micro-batches do not divide the {sequences} sequences of one of the "
         "study's micro-batches on a rank; the nearest option microbatches is "
         f"{nearest(cut, sequences)}"),
        (name == "1f1b" and total < stages.ranks,
         f"schedule 1f1b passes {total} micro-batches through {stages.ranks} pipeline ranks, and "
         "torch's needs one for each; set schedule to gpipe, or more of them"),
    ])  # fmt: skip
    if name not in ONE_STAGE and total % _rounds(total, stages.ranks):
        fitting = [
            n
            for n in divisors(sequences)
            if n * accumulation % _rounds(n * accumulation, stages.ranks) == 0
        ]
        instead = min(fitting, key=lambda n: abs(n - cut), default=None)
        raise StudyError(
            f"{run}: schedule {name} passes {total} micro-batches ({accumulation} x {cut}) through "
            f"{stages.ranks} pipeline ranks in {_rounds(total, stages.ranks)} rounds, which do not "
            "divide them; "
            + ("set schedule to 1f1b" if instead is None else f"set microbatches to {instead}")
        )
    return Schedule(name, stages, total)


def _rounds(microbatches: int, ranks: int) -> int:
    """Rounds in which interleaved schedules of torch let micro-batches pass."""
    return max(1, microbatches // ranks)
