"""Time-dilation factor, copies and core shares of emulated nodes (pure arithmetic)."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.study.spec import WorldSpec

LEAST = "SAMESTEP_LEAST_DILATION"
"""Environment variable: dilate by this at least, so that factors can be held against each other."""


HEADROOM = 0.25
"""A core that is busy all the time makes each of its ranks late by the turns of the others, and by
whatever else runs there: 2 to 4 % of a step, and 0.5 to 2 % with this share of it idle."""

YARDSTICK_HEADROOM, YARDSTICK_LEAST = 1.5, 5.0
"""With a yardstick ranks wait for less than their own CPU seconds ask for, up to 1.4 times as many
as undisturbed; and the threads of Horovod, on cores of their own in a cluster, need room next to
the ranks that compute: on eight nodes on two cores its step takes 5 % longer at a headroom of 1,
and as long at 1.5 as at 4. And every run is paced, those of one node too, by a factor at which two
ranks share a core: where a rank has a core to itself, its caches stay warm while it waits (6 % of a
step)."""


@dataclass(frozen=True)
class Dilation:
    """`factor` seconds of the machine pass for one second of the emulated cluster.

    Where the machine, so stretched, holds the nodes more than once, `copies` of them run side by
    side, so that a core's neighbours are as busy in a run of one node as in a run of many; only the
    first copy is measured.
    """

    factor: float
    copies: int


def dilate(world: WorldSpec, cores: int) -> Dilation:
    """The factor by which the nodes of `world.dilated_for` fit on `cores`; 1 where they do as is.

    Nodes that share a core get `HEADROOM` more time than all of them at work at once would take,
    with a yardstick `YARDSTICK_HEADROOM`. In real time nothing is stretched.
    """
    width = world.cores_per_node or 1
    if world.real_time:
        return Dilation(1.0, max(1, cores // (world.nodes * width)))
    headroom = YARDSTICK_HEADROOM if world.yardstick else HEADROOM
    # On the fullest core.
    shared = -(-(world.dilated_for or world.nodes) * width // cores)
    needed = 1 if shared == 1 else shared + math.ceil(headroom * shared)
    asked_for = float(os.environ.get(LEAST, "1"))
    factor = max(asked_for, YARDSTICK_LEAST if world.yardstick else 1, needed)
    room = max(1, math.floor(factor / (1 + headroom))) * cores
    return Dilation(factor, max(1, room // (world.nodes * width)))


def places(count: int, cores_per_node: int, cores: Sequence[int]) -> list[list[int]]:
    """The cores of each of `count` nodes, dealt out in turn, so that every core is as full."""
    width = min(cores_per_node, len(cores))
    return [
        sorted({cores[(node * cores_per_node + core) % len(cores)] for core in range(width)})
        for node in range(count)
    ]
