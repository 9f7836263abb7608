"""Measurements of this machine from which steps of a study are predicted (`calibrate`).

Operators by size, memory and the host's time for an operator (`operators`), and collectives by size
over the study's own network (`collectives`). No model is built, no step is made: what is predicted
later was never timed.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from pipeline.errors import StudyError
from pipeline.launch.calibrate import collectives, operators
from pipeline.machine.facts import hardware
from pipeline.machine.source import provenance
from pipeline.planner.auto import layouts_of
from pipeline.planner.operators import of_study, work_of
from pipeline.resolved import ResolvedRun, runs_of
from pipeline.study.study import Study

VERSION = 2
SECONDS = 24.0
"""Of measuring, of which `SHARE` goes to operators."""
SHARE = 0.5


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
    sent = collectives.measured([run.spec for run in sending], cores, seconds * (1 - SHARE))
    rounds = operators.measured(wanted, cores, threads, seconds * SHARE)
    timed = zip(wanted, zip(*(one["operators"] for one in rounds), strict=True), strict=True)
    return {
        "threads": threads,
        "host_seconds": statistics.median(one["host_seconds"] for one in rounds),
        "memory_bytes_per_second": statistics.median(one["memory"] for one in rounds),
        "operators": [
            {"kind": one.kind, "dtype": one.dtype, "sizes": list(one.sizes),
             "seconds": statistics.median(each)}
            for one, each in timed
        ],
        "collectives": sent,
    }  # fmt: skip
