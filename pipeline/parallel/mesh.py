"""Layout of ranks, devices and the global batch: pure arithmetic, no torch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pipeline.errors import StudyError
from pipeline.study.spec import RunSpec, WorldSpec

DATA = "data"
"""The axis whose ranks read different sequences; along most others they read the same."""

REPLICA = "replica"
"""The axis along which groups that cut the weights over `DATA` hold the same; they read others."""

PIPELINE, TENSOR, CONTEXT = "pipeline", "tensor", "context"
"""Axes along which layers are stages, each layer is cut, and the positions of sequences are."""

EXPERT = "expert"
"""The axis along which the experts of a mixture are cut; its ranks read different sequences too."""

READING = (REPLICA, DATA, EXPERT)
"""Axes that cut the global batch, the first one into the largest slices."""

BUCKET_BYTES = 25 * 2**20
"""Size of the messages that average a pipeline's gradients along the data axis; DDP's own."""


@dataclass(frozen=True)
class Degrees:
    """A layout that is searched for: sizes of its axes, and how they are used.

    `chunks`: stages of a pipeline rank. `microbatches`: those of a step on a data rank. `zero`:
    stage of ZeRO along the data axis, over groups of `shard` of its ranks, 0 for all of them.
    `sequence`: sequence parallelism along the tensor axis.
    `layers`: those of each stage; none where they are as even as can be. `schedule`: of the
    pipeline; none stated, it is 1F1B, interleaved where ranks have chunks. `inside`: the axis whose
    ranks are neighbours, `TENSOR` or `PIPELINE`; the other one's are farthest apart. `expert`: over
    how many neighbours of the `data` ranks the experts of a mixture are cut.
    """

    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    chunks: int = 1
    zero: int = 0
    microbatches: int = 1
    sequence: bool = False
    layers: tuple[int, ...] = ()
    schedule: str = ""
    shard: int = 0
    inside: str = TENSOR
    expert: int = 1


@dataclass(frozen=True)
class Layout:
    """An ordered mesh of named axes, the same on every rank.

    `axes` are (name, size) pairs, for example (("pipeline", 2), ("data", 2), ("tensor", 2)): ranks
    are numbered so that the last axis varies fastest. `processes_per_node` ranks are started on
    each node; each owns `devices_per_process` devices.
    """

    axes: tuple[tuple[str, int], ...]
    processes_per_node: int
    device: str
    backend: str
    devices_per_process: int = 1

    @classmethod
    def of(cls, world: WorldSpec, *axes: tuple[str, int]) -> Layout:
        """One process for each device of the world, on a mesh of these axes."""
        return cls(axes, world.ranks_per_node, world.device, world.backend)

    def size(self, axis: str) -> int:
        """Number of ranks along an axis: 1 where there is none of that name."""
        return dict(self.axes).get(axis, 1)

    @property
    def num_processes(self) -> int:
        """Number of ranks: the product of the axes."""
        return math.prod(size for _, size in self.axes)

    @property
    def data_parallel(self) -> int:
        """Number of equal slices into which the global batch is cut."""
        return math.prod(map(self.size, READING))

    @property
    def averaging(self) -> int:
        """Number of ranks that read tokens of their own: a weight's gradients are their mean."""
        return self.data_parallel * self.size(CONTEXT)

    def joined(self, *names: str) -> Layout:
        """The same ranks, with neighbouring axes of these names as one: `data x context`."""
        some = [axis for axis in self.axes if axis[0] in names]
        first = self.axes.index(some[0])
        one = " x ".join(name for name, _ in some), math.prod(size for _, size in some)
        return replace(self, axes=(*self.axes[:first], one, *self.axes[first + len(some) :]))

    @property
    def data_devices(self) -> int:
        """Devices that compute sequences of their own: weak scaling multiplies the batch by it."""
        return self.data_parallel * self.devices_per_process

    def coordinate(self, rank: int) -> dict[str, int]:
        """The place of a rank on each axis."""
        place: dict[str, int] = {}
        # The last axis varies fastest.
        for name, size in reversed(self.axes):
            rank, place[name] = divmod(rank, size)
        return {name: place[name] for name, _ in self.axes}

    def along(self, axis: str, rank: int) -> list[int]:
        """The ranks that differ from `rank` on this axis alone, itself among them, in its order.

        Or on several axes, joined by ` x `.
        """
        line, here, apart = [rank], self.coordinate(rank), self.num_processes
        for name, size in self.axes:
            apart //= size  # ranks between two neighbours on this axis
            if name in axis.split(" x "):
                line = [one + (at - here[name]) * apart for one in line for at in range(size)]
        return line

    def axis_of(self, ranks: Iterable[int]) -> str:
        """The axis along which these ranks differ; several are joined by ` x `."""
        places = [self.coordinate(rank) for rank in ranks]
        return " x ".join(name for name, _ in self.axes if len({p[name] for p in places}) > 1)

    def leaves_node(self, rank: int, ranks: Sequence[int]) -> bool:
        """True where the rank after `rank` in the ring of these ranks is on another node."""
        after = ranks[(ranks.index(rank) + 1) % len(ranks)]
        return after // self.processes_per_node != rank // self.processes_per_node

    def batch_slice(self, rank: int, global_batch: int) -> tuple[int, int]:
        """First and past-the-last sequence that `rank` reads of a batch."""
        share = global_batch // self.data_parallel
        place, slice_number = self.coordinate(rank), 0
        for axis in READING:
            slice_number = slice_number * self.size(axis) + place.get(axis, 0)
        return slice_number * share, (slice_number + 1) * share

    def check_batch(self, spec: RunSpec) -> None:
        """Raise StudyError where a rank's part of the batch is no whole number of micro-batches."""
        work, parts = spec.workload, self.data_devices
        pieces = parts * work.accumulation_steps
        if work.global_batch % pieces:
            raise StudyError(
                f"{spec.run_id}: global batch {work.global_batch} is not data-parallel ranks"
                f"({parts}) x accumulation_steps({work.accumulation_steps}) x a whole micro-batch; "
                f"set workload.global_batch to a multiple of {pieces}"
            )

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types, for the record; the axes where there is another one than `data`."""
        mesh = {} if [name for name, _ in self.axes] == [DATA] else {"axes": list(self.axes)}
        return {
            "num_processes": self.num_processes,
            "processes_per_node": self.processes_per_node,
            "devices_per_process": self.devices_per_process,
            "data_parallel": self.data_parallel,
            "device": self.device,
            "backend": self.backend,
            **mesh,
        }


def axis_size(strategy: str, axis: str, ranks: int, world: WorldSpec) -> int:
    """Ranks of an axis, all where 0 are asked for; StudyError where they do not divide these."""
    size = ranks or world.size
    if world.size % size:
        raise StudyError(
            f"strategy {strategy}: {size} {axis} ranks do not divide {world.size} ranks; set the "
            "cell's option ranks to a divisor of every world size, or to 0 for all; the nearest "
            f"that divides these is {nearest(size, world.size)}"
        )
    return size


def product(sizes: Mapping[str, int]) -> str:
    """Axes with their sizes: `pipeline 2 x tensor 2 x data 1`."""
    return " x ".join(f"{axis} {size}" for axis, size in sizes.items())


def no_data_axis(axis: str, size: int) -> str:
    """The fault of an axis that leaves ZeRO no data axis, with the nearest layout that has one."""
    fewer = divisors(size)[-2:][0]
    return (
        f"data 1 x {axis} {size} has no data axis to cut over; the nearest is data {size // fewer} "
        f"x {axis} {fewer} (option ranks {fewer}), or set zero_stage to 0"
    )


def divisors(number: int) -> list[int]:
    """All of them, ascending."""
    return [n for n in range(1, number + 1) if number % n == 0]


def nearest(asked: int, number: int) -> int:
    """The divisor of `number` that is nearest to `asked`, the smaller of two."""
    return min(divisors(number), key=lambda n: abs(n - asked))
