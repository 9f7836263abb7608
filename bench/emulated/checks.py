"""What a step takes must not depend on the factor by which time is dilated."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bench.emulated.runs import Runs, Taken, Variant
from pipeline.emulation import links
from pipeline.emulation.dilation import dilate
from pipeline.metrics.statistics import Interval, repeats_interval
from pipeline.study.spec import RunSpec, WorldSpec

RATE_MBITS = 1000.0
"""The faster link of the study, over which the cores' part of a step is the larger one."""

NODES = 8
PROFILED_FACTOR = 5
WIRE = (links.MTU - links.HEADER_BYTES) / (links.MTU + links.FRAME_BYTES)
"""Bytes of a gradient in a full Ethernet frame, of those that the link counts."""


def invariance(runs: Runs, cell: str, factors: Sequence[int], repeats: int) -> dict[str, Any]:
    """Two nodes (one for `single`) at several factors, over the first of these."""
    nodes = 1 if cell == "single" else 2
    return _against_first(runs, repeats, runs.spec(cell, nodes, RATE_MBITS), factors)


def eight_nodes(runs: Runs, cell: str, factors: Sequence[int], repeats: int) -> dict[str, Any]:
    """Eight nodes at several factors, over the first of these."""
    return _against_first(runs, repeats, runs.spec(cell, NODES, RATE_MBITS), factors)


def factors_here(nodes: int, factors: Sequence[int], *, yardstick: bool) -> list[int]:
    """The least factor that so many nodes need on this machine, and those above it."""
    world = WorldSpec(
        nodes, 1, "cpu", "gloo", "emulated", cores_per_node=1, yardstick=yardstick or None
    )
    least = int(dilate(world, len(os.sched_getaffinity(0))).factor)
    return [least, *(factor for factor in factors if factor > least)]


def profiled(runs: Runs, cells: Iterable[str]) -> None:
    """A profiled run of each cell, whose phases are then counted in `runs.tally`."""
    for cell in cells:
        spec = runs.spec(cell, 1 if cell == "single" else 2, RATE_MBITS, profile=True)
        runs.taken(Variant(spec, PROFILED_FACTOR))


def slower(runs: Runs, nodes: int, repeats: int) -> dict[str, Any]:
    """How much longer a step is at half the rate, over the time that the ring's bytes take more."""
    specs = [runs.spec("dps", nodes, rate) for rate in (200.0, 100.0)]
    [factor] = factors_here(nodes, [], yardstick=bool(specs[0].world.yardstick))
    quick, long = runs.in_turn(repeats, [Variant(spec, factor) for spec in specs])
    wire_bits = 2 * (nodes - 1) / nodes * 4 * runs.num_parameters * 8 / WIRE
    predicted = wire_bits / 100e6 - wire_bits / 200e6
    found = [(b.seconds - a.seconds) / predicted for a, b in zip(quick, long, strict=True)]
    about = {"nodes": nodes, "predicted_seconds": predicted}
    return about | shown(interval_of(found)) | runs.machine.told()


def _against_first(
    runs: Runs, repeats: int, spec: RunSpec, factors: Sequence[int]
) -> dict[str, Any]:
    """Step time and CPU seconds at each factor over those at the first, repeat by repeat.

    The speed of a machine changes from run to run, and with it the CPU seconds of the same work;
    `at_equal_cpu_seconds` is the ratio of step times without that difference.
    """
    first, *others = runs.in_turn(repeats, [Variant(spec, factor) for factor in factors])
    ratios = [
        {"factor": factor}
        | shown(interval_of([a.seconds / b.seconds for a, b in _pairs(taken, first)]))
        | {
            "cpu_seconds": median(a.cpu_seconds / b.cpu_seconds for a, b in _pairs(taken, first)),
            "at_equal_cpu_seconds": median(
                (a.seconds - a.cpu_seconds + b.cpu_seconds) / b.seconds
                for a, b in _pairs(taken, first)
            ),
        }
        for factor, taken in zip(factors[1:], others, strict=True)
    ]
    reference = {"factor": factors[0], "step_seconds": median(one.seconds for one in first)}
    about = {"cell": spec.cell, "nodes": spec.world.nodes, "reference": reference}
    return about | {"ratios": ratios} | runs.machine.told()


def _pairs(ones: Sequence[Taken], others: Sequence[Taken]) -> Iterator[tuple[Taken, Taken]]:
    return zip(ones, others, strict=True)


def median(values: Iterable[float]) -> float:
    """The median of some figures."""
    return float(np.median(list(values)))


def interval_of(values: Sequence[float]) -> Interval:
    """The median of one figure a repeat, with its rank interval."""
    return repeats_interval([np.asarray([value]) for value in values])


def shown(interval: Interval) -> dict[str, Any]:
    """An interval for the results file."""
    return {key: getattr(interval, key) for key in ("value", "low", "high", "n", "how")}


def largest_bias(checks: Iterable[Mapping[str, Any]]) -> float:
    """By how much a median of all these ratios is off 1 at most, as a share: 0.9 is off by 0.11."""
    return max(max(value, 1 / value) - 1 for value in _medians(checks))


def _medians(checks: Iterable[Mapping[str, Any]]) -> Iterator[float]:
    for check in checks:
        yield from (ratio["value"] for ratio in check["ratios"])
