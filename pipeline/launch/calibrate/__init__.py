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

from pipeline.emulation.dilation import awake, dilate
from pipeline.errors import StudyError
from pipeline.launch.calibrate import collectives, nodes, operators
from pipeline.machine.facts import hardware
from pipeline.machine.processes import at_once
from pipeline.machine.source import provenance
from pipeline.models import FP32
from pipeline.planner.auto import layouts_of
from pipeline.planner.operators import Operator, of_study, work_of
from pipeline.resolved import ResolvedRun, runs_of
from pipeline.study.study import Study

VERSION = 6
SECONDS = 24.0
"""Of measuring, of which `SHARE` goes to operators."""
SHARE = 0.5
MESSAGE = 1 << 18
"""Bytes of the all-reduce between two stretches of operators."""


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
        "waits": _after_collectives(sending, timed, cores),
        "collectives": sent,
    }  # fmt: skip


def _after_collectives(
    runs: Sequence[ResolvedRun], timed: Mapping[Operator, float], cores: Sequence[int]
) -> list[dict[str, Any]]:
    """Seconds that a stretch of operators takes longer after a collective, by number of nodes.

    Of worlds whose time is dilated, and whose CPU seconds no yardstick counts. The rank has waited
    then, others have used its core, and Gloo's threads its caches.
    """
    worlds = {
        (world.dilated_for or world.nodes, world.nodes): run
        for run in runs
        if (world := run.spec.world).link and not world.yardstick and dilate(world, len(cores)) > 1
    }
    if not worlds:
        return []

    def alone() -> list[float]:
        return operators.stretches(timed, 1.0, lambda: None)

    def within(_: str, dilation: float) -> list[float]:
        import torch
        import torch.distributed as dist

        message = torch.zeros(MESSAGE // FP32)
        return operators.stretches(timed, dilation, lambda: dist.all_reduce(message))

    def middle(each: Sequence[Sequence[float]]) -> list[float]:
        return [statistics.median(same) for same in zip(*each, strict=True)]

    with awake(cores):  # as those of a run are
        undisturbed = middle(at_once([alone] * len(cores), [[core] for core in cores]))
    return [
        {"nodes": count, "dilated_for": dilated_for, "seconds": least,
         "more": max(0.0, took - least)}
        for (dilated_for, count), run in sorted(worlds.items())
        for least, took in zip(undisturbed, middle(nodes.on_nodes(run, cores, within)), strict=True)
    ]  # fmt: skip
