"""What a step takes must depend neither on the factor of dilated time nor on the cores below it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bench.emulated.runs import Runs, Taken, Variant
from pipeline.emulation import links
from pipeline.metrics.statistics import Interval, repeats_interval

RATE_MBITS = 1000.0
"""The faster link of the study, over which the cores' part of a step is the larger one."""

NODES = 8
EIGHT_NODES = ((4, 2), (8, 2), (8, 1), (16, 2))
"""(factor, cores) that hold eight nodes of one core, or more."""

PROFILED_FACTOR = 4
WIRE = (links.MTU - links.HEADER_BYTES) / (links.MTU + links.FRAME_BYTES)
"""Bytes of a gradient in a full Ethernet frame, of those that the link counts."""


def invariance(runs: Runs, cell: str, factors: Sequence[int], repeats: int) -> dict[str, Any]:
    """Two nodes (one for `single`) on one core at several factors, over two cores at factor 1."""
    nodes = 1 if cell == "single" else 2
    spec = runs.spec(cell, nodes, RATE_MBITS)
    variants = [Variant(spec, factor, 2 if factor == 1 else 1) for factor in factors]
    return {"cell": cell, "nodes": nodes} | _against_first(runs, repeats, variants)


def eight_nodes(runs: Runs, cell: str, settings: Sequence[tuple[int, int]], repeats: int) -> Any:
    """Eight nodes at several factors on several numbers of cores, over the first of these."""
    spec = runs.spec(cell, NODES, RATE_MBITS)
    variants = [Variant(spec, factor, cores) for factor, cores in settings]
    return {"cell": cell, "nodes": NODES} | _against_first(runs, repeats, variants)


def settings_here() -> list[tuple[int, int]]:
    """(factor, cores) for eight nodes; the first is undilated where the machine has the cores."""
    undilated = [(1, NODES)] if len(os.sched_getaffinity(0)) >= NODES else []
    return [*undilated, *EIGHT_NODES]


def profiled(runs: Runs, cells: Iterable[str]) -> None:
    """A profiled run of each cell, whose phases are then counted in `runs.tally`."""
    for cell in cells:
        spec = runs.spec(cell, 1 if cell == "single" else 2, RATE_MBITS, profile=True)
        runs.taken(Variant(spec, PROFILED_FACTOR, 1), room=2)


def slower(runs: Runs, nodes: int, repeats: int) -> dict[str, Any]:
    """How much longer a step is at half the rate, over the time that the ring's bytes take more."""
    specs = [runs.spec("dps", nodes, rate) for rate in (200.0, 100.0)]
    quick, long = runs.in_turn(repeats, [Variant(spec, nodes / 2, 2) for spec in specs])
    wire_bits = 2 * (nodes - 1) / nodes * 4 * runs.num_parameters * 8 / WIRE
    predicted = wire_bits / 100e6 - wire_bits / 200e6
    found = [(b.seconds - a.seconds) / predicted for a, b in zip(quick, long, strict=True)]
    about = {"nodes": nodes, "predicted_seconds": predicted}
    return about | shown(interval_of(found)) | runs.machine.told()


def _against_first(runs: Runs, repeats: int, variants: Sequence[Variant]) -> dict[str, Any]:
    """Step time and CPU seconds of each variant over those of the first, repeat by repeat.

    The speed of a machine changes from run to run, and with it the CPU seconds of the same work;
    `at_equal_cpu_seconds` is the ratio of step times without that difference.
    """
    first, *others = runs.in_turn(repeats, variants)
    ratios = [
        {"factor": variant.factor, "cores": variant.cores}
        | shown(interval_of([a.seconds / b.seconds for a, b in _pairs(taken, first)]))
        | {
            "cpu_seconds": _median(a.cpu_seconds / b.cpu_seconds for a, b in _pairs(taken, first)),
            "at_equal_cpu_seconds": _median(
                (a.seconds - a.cpu_seconds + b.cpu_seconds) / b.seconds
                for a, b in _pairs(taken, first)
            ),
        }
        for variant, taken in zip(variants[1:], others, strict=True)
    ]
    reference = {"factor": variants[0].factor, "cores": variants[0].cores}
    reference["step_seconds"] = _median(one.seconds for one in first)
    return {"reference": reference, "ratios": ratios} | runs.machine.told()


def _pairs(ones: Sequence[Taken], others: Sequence[Taken]) -> Iterator[tuple[Taken, Taken]]:
    return zip(ones, others, strict=True)


def _median(values: Iterable[float]) -> float:
    return float(np.median(list(values)))


def interval_of(values: Sequence[float]) -> Interval:
    """The median of one figure a repeat, with its rank interval."""
    return repeats_interval([np.asarray([value]) for value in values])


def shown(interval: Interval) -> dict[str, Any]:
    """As the results hold it."""
    return {key: getattr(interval, key) for key in ("value", "low", "high", "n", "how")}


def largest_bias(checks: Iterable[Mapping[str, Any]]) -> float:
    """By how much a median of all these ratios is off 1 at most, as a share: 0.9 is off by 0.11."""
    return max(max(value, 1 / value) - 1 for value in _medians(checks))


def _medians(checks: Iterable[Mapping[str, Any]]) -> Iterator[float]:
    for check in checks:
        yield from (ratio["value"] for ratio in check["ratios"])
