"""Measurements of this machine from which steps of a study are predicted (`calibrate`).

Operators by size, memory, the host's time for an operator, and what waits cost an emulated node
(`operators`), and collectives by size over the study's own network (`collectives`). No model is
built, no step is made: what is predicted later was never timed.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from pipeline.emulation.dilation import awake, dilate, places
from pipeline.errors import StudyError
from pipeline.launch.calibrate import collectives, operators
from pipeline.machine.facts import hardware
from pipeline.machine.source import provenance
from pipeline.planner.auto import layouts_of
from pipeline.planner.operators import Operator, of_study, work_of
from pipeline.resolved import ResolvedRun, runs_of
from pipeline.study.study import Study

VERSION = 4
SECONDS = 24.0
"""Of measuring, of which `SHARE` goes to operators."""
SHARE = 0.5
WAITS_SHARE = 0.15
"""Of them, besides, for each number of nodes whose time is dilated."""


def measured(study: Study, cores: Sequence[int], seconds: float = SECONDS) -> dict[str, Any]:
    """The figures of this machine for a study, as the schema `calibration` has it.

    Operators are those of its cells, and of the layouts that `plan --auto` ranks for it.
    Raises StudyError for a study of GPUs or of several machines.
    """
    if study.cluster.device != "cpu" or study.cluster.network == "real":
        raise StudyError(
            f"study {study.name} runs on {study.cluster.device} over a network "
            f"{study.cluster.network}; calibrate measures emulated nodes or the loopback of one "
            "machine of CPUs: take `predict --points` or `plan --model` for GPUs"
        )
    runs = runs_of(study)
    if not of_study(runs):
        # Each of them is refused; the first says why.
        work_of(runs[0])
    return {
        "version": VERSION,
        "study": study.name,
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "hardware": hardware(),
        "git_commit": provenance()["git_commit"],
        "cores_per_node": study.cluster.cores_per_node,
        "links": {link.name: link.to_dict() for link in study.cluster.links},
        **figures(runs, [*runs, *layouts_of(study)], cores, seconds),
    }


def figures(
    sending: Sequence[ResolvedRun],
    computing: Sequence[ResolvedRun],
    cores: Sequence[int],
    seconds: float,
) -> dict[str, Any]:
    """Times of the collectives of some runs and of the operators of others, in some seconds."""
    # As many threads as a rank of any run has at most.
    wanted, threads = of_study(computing), max(run.threads_on(len(cores)) for run in sending)
    # First what forks: this process has no torch yet, and its threads would not survive.
    sent = collectives.measured(sending, computing, cores, seconds * (1 - SHARE))
    rounds = operators.measured(wanted, cores, threads, seconds * SHARE)
    each = zip(*(one["operators"] for one in rounds), strict=True)
    timed = dict(zip(wanted, map(statistics.median, each), strict=True))
    return {
        "threads": threads,
        "host_seconds": statistics.median(one["host_seconds"] for one in rounds),
        "memory_bytes_per_second": statistics.median(one["memory"] for one in rounds),
        "operators": [
            {"kind": one.kind, "dtype": one.dtype, "sizes": list(one.sizes), "seconds": own}
            for one, own in timed.items()
        ],
        "waits": _after_waits(sending, timed, cores, seconds * WAITS_SHARE),
        "collectives": sent,
    }  # fmt: skip


def _after_waits(
    runs: Sequence[ResolvedRun],
    timed: Mapping[Operator, float],
    cores: Sequence[int],
    seconds: float,
) -> list[dict[str, Any]]:
    """Seconds that a stretch of operators takes longer after a wait, by number of nodes.

    Of worlds whose time is dilated, and whose CPU seconds no yardstick counts.
    """
    worlds = {
        (world.dilated_for or world.nodes, world.nodes): world
        for world in (run.spec.world for run in runs)
        if world.link and not world.yardstick and dilate(world, len(cores)) > 1
    }
    if not worlds:
        return []
    alone = [[core] for core in cores]
    waits = []
    with awake(cores):  # as those of a run are
        at_once = operators.stretches(timed, alone, 1.0, seconds)
        for (dilated_for, nodes), world in sorted(worlds.items()):
            own = places(nodes, world.cores_per_node or 1, cores)
            ranks = [place for place in own for _ in range(world.ranks_per_node)]
            took = operators.stretches(timed, ranks, dilate(world, len(cores)), seconds)
            waits += [
                {"nodes": nodes, "dilated_for": dilated_for, "seconds": least,
                 "more": max(0.0, paced - least)}
                for least, paced in zip(at_once, took, strict=True)
            ]  # fmt: skip
    return waits
