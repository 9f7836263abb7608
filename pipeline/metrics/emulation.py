"""Accuracy of emulated times: runs in real time against the emulated ones of the same cell.

Rows of level `real_time` are about one such run, rows of level `cell` about all of a cell on two
nodes. From them comes the share by which a ratio of emulated times may be off, as tables and texts
state it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np

from pipeline.emulation.measured import REAL_TIME_SHARE
from pipeline.errors import RecordError
from pipeline.metrics.cells import Groups
from pipeline.metrics.runs import Run
from pipeline.metrics.statistics import (
    MIN_REPEATS,
    Interval,
    interpolated_bounds,
    interval_of_ratio,
    repeats_interval,
)
from pipeline.metrics.table import Rows, interval_row
from pipeline.schemas import read

WHERE_MEASURED = "cluster.real_time on a machine with a core for each node of a cell"


def accuracy(
    runs: Sequence[Run], real: Sequence[Run], groups: Groups, uncertainty: float
) -> tuple[list[Rows], float | None]:
    """Rows of cells with runs in `real` time: their step time there, and the emulated one over it.

    With them comes the share by which a ratio of two emulated times may be off: the far end of the
    worst pair. The level of the yardstick cancels in a ratio of two emulated times; so cells are
    held against one another, and a single one against itself in real time. `uncertainty` is that
    of a yardstick's passes against each other, which two nodes do not show. The share is 0 where
    nothing was dilated, and None where no cell on several nodes has the repeats that an interval
    needs.
    """
    parts, ratios, several = list[Rows](), list[Interval](), False
    for (cell, nodes), group in groups.items():
        seconds = [
            at_yardstick_speed(run).timed_seconds
            for run in real
            if run.ok and (run.record.spec.cell, run.context["nodes"]) == (cell, nodes)
        ]
        if seconds and group.ok:
            truth = repeats_interval(seconds)
            ratio = interval_of_ratio(group.step_seconds, truth)
            values = [
                interval_row("real_time_step_seconds", "s", truth),
                interval_row("accuracy", "1", ratio),
            ]
            parts.append(Rows(group.context | {"base": "the same cell in real time"}, values))
            if ratio.n >= MIN_REPEATS:
                ratios.append(ratio)
                several |= nodes > 1
    # One node alone says nothing of what sharing cores and links does to a step.
    if not several:
        # Nothing is off where every emulated node had cores of its own, and other programs left it
        # those: the same least share of them as in runs that a study makes in real time.
        executed = [run.record.run["execution"] for run in runs if run.ok]
        emulated = [one["emulation"] for one in executed if "emulation" in one]
        undilated = all(
            one["dilation"] == 1
            and min(one["measured_cores"]) >= REAL_TIME_SHARE * one["cores_per_node"]
            for one in emulated
        )
        return parts, 0.0 if emulated and undilated and not real else None
    pairs = [interval_of_ratio(one, other) for one, other in combinations(ratios, 2)] or ratios
    # The bound that is farther from 1, either way: what is decided must hold at that end too.
    farthest = max(max(one.high, 1 / one.low) for one in pairs)
    return parts, farthest * (1 + uncertainty) - 1


def at_yardstick_speed(run: Run) -> Run:
    """A run in real time with the step times that it would have at the speed of the yardstick.

    The rank that waits least holds a step up: its CPU seconds count by the median of its forward
    passes, as they do on emulated nodes, and waits stay as they are. A core of a shared machine
    changes its speed by half within minutes, which is no error of the emulation.

    Times stay as they were measured where a record has no speeds, as without a yardstick, and where
    nodes are slowed on purpose, since they are paced by it then.
    """
    link = run.record.spec.world.link
    ranks = run.record.run["ranks"]
    speeds = {
        one["rank"]: one["machine_speed"]["median"] for one in ranks if "machine_speed" in one
    }
    if len(speeds) < len(ranks) or (link and (link.straggler or link.jitter)):
        return run
    # Of each step the shortest wait of a rank, and what its speed added to the step.
    least: dict[int, tuple[float, float]] = {}
    for step in run.record.steps:
        cpu = step.cpu_seconds or 0.0
        held = step.seconds - cpu, cpu * (1 - speeds[step.rank])
        least[step.step] = min(held, least.get(step.step, held))
    return replace(run, seconds=run.seconds - np.array([added for _, added in least.values()]))


def load_uncertainty(path: Path | None) -> float:
    """By how much the passes of a yardstick may be off against each other; 0 without a file.

    An error that all passes share changes what the emulated processor is, and no comparison. What
    is left is how far each is off the geometric mean of its round: the largest half-width of the
    medians' 95 % intervals.
    """
    if path is None:
        return 0.0
    content = read(path, "yardstick", "python -m pipeline yardstick")
    rounds = [[one["forward_seconds"] for one in shape["rounds"]] for shape in content["passes"]]
    if len({len(ones) for ones in rounds}) != 1:
        raise RecordError(
            f"{path} at $.passes: all need as many rounds; remove the file, it is measured again"
        )
    logs = np.log(np.asarray(rounds))
    # Shape (shapes, rounds); what all passes of a round share is the speed of the processor itself.
    own = logs - logs.mean(axis=0)
    bounds = [(np.median(one), *interpolated_bounds(one)) for one in own]
    return float(np.expm1(max(max(high - mid, mid - low) for mid, low, high in bounds)))
