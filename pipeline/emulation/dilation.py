"""Time-dilation factor of emulated nodes, and the cores of each (pure arithmetic)."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence

from pipeline.study.spec import WorldSpec

LEAST = "SAMESTEP_LEAST_DILATION"
"""Environment variable: dilate by this at least, to compare factors."""

HEADROOM = 0.25
"""Idle share of a core that ranks share. Turns of the others make a rank late by 0.5 to 2 % of a
step with it, by 2 to 4 % on a core that is always busy."""

YARDSTICK_HEADROOM, YARDSTICK_LEAST = 1.5, 5.0
"""With a yardstick CPU seconds are up to 1.4 times as many as undisturbed, and Horovod's threads
need room next to the ranks that compute: on eight nodes on two cores its step takes 5 % longer at a
headroom of 1, and as long at 1.5 as at 4. Every run is paced, those of one node too, by a factor at
which two ranks share a core."""


def dilate(world: WorldSpec, cores: int) -> float:
    """Seconds of the machine that pass for one second of the emulated cluster.

    It is the factor by which the nodes of `world.dilated_for` fit on `cores`, 1 where they do as
    they are. Nodes that share a core get `HEADROOM` more time than all of them at work at once
    would take, with a yardstick `YARDSTICK_HEADROOM`. In real time nothing is stretched.
    """
    if world.real_time:
        return 1.0
    headroom = YARDSTICK_HEADROOM if world.yardstick else HEADROOM
    # On the fullest core.
    shared = -(-(world.dilated_for or world.nodes) * (world.cores_per_node or 1) // cores)
    needed = 1 if shared == 1 else shared + math.ceil(headroom * shared)
    asked_for = float(os.environ.get(LEAST, "1"))
    return max(asked_for, YARDSTICK_LEAST if world.yardstick else 1, needed)


def places(count: int, cores_per_node: int, cores: Sequence[int]) -> list[list[int]]:
    """The cores of each of `count` nodes, dealt out in turn, so that every core is as full."""
    width = min(cores_per_node, len(cores))
    return [
        sorted({cores[(node * cores_per_node + core) % len(cores)] for core in range(width)})
        for node in range(count)
    ]
