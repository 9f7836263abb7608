"""Shared parts of the benches of emulated nodes: rate, least factor, medians with intervals."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from pipeline.emulation import links
from pipeline.emulation.dilation import dilate
from pipeline.metrics.statistics import Interval, repeats_interval
from pipeline.study.spec import WorldSpec

RATE_MBITS = 1000.0
"""The faster link of the study, over which the cores' part of a step is the larger one."""

WIRE = (links.MTU - links.HEADER_BYTES) / (links.MTU + links.FRAME_BYTES)
"""Bytes of a gradient in a full Ethernet frame, of those that the link counts."""


def least_factor(nodes: int) -> int:
    """The least factor that so many nodes need on this machine."""
    world = WorldSpec(nodes, 1, "cpu", "gloo", "emulated", cores_per_node=1)
    return int(dilate(world, len(os.sched_getaffinity(0))).factor)


def median(values: Iterable[float]) -> float:
    """The median of some figures."""
    return float(np.median(list(values)))


def interval_of(values: Sequence[float]) -> Interval:
    """The median of one figure a repeat, with its rank interval."""
    return repeats_interval([np.asarray([value]) for value in values])


def shown(interval: Interval) -> dict[str, Any]:
    """An interval for the results file."""
    return {key: getattr(interval, key) for key in ("value", "low", "high", "n", "how")}
