"""Two runs of one model in two layouts: from which step on they part, and in which blocks.

Loss and gradient norm are those of every step. Profiled runs also keep the squares of the gradients
of each block, from which its norm is put together here.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pipeline.compare.sets import SERIES
from pipeline.errors import ComparisonError
from pipeline.metrics.format import scientific
from pipeline.metrics.parity import relative_deviation
from pipeline.records import RunRecord, read_record
from pipeline.text import NONE, align, plural, significant


def parting(folders: Sequence[Path], allowed: float) -> tuple[list[str], bool]:
    """Lines on two runs, and whether all is within what is `allowed`, a relative difference.

    Raises ComparisonError where they did not finish or had other work.
    """
    records = [read_record(folder) for folder in folders]
    for record, folder in zip(records, folders, strict=True):
        if record.status != "ok":
            raise ComparisonError(f"{folder} is {record.status}; give two runs that finished")
    # What makes the steps of two runs the same, whatever the strategy and the precision.
    one_work, other_work = (
        {
            "model": record.spec.model,
            "objective": record.spec.objective,
            "optimiser": record.spec.optimiser,
            "seed": record.spec.seed,
            "global batch": record.spec.workload.global_batch,
            "tokens": record.run["data"]["manifest_sha256"],
        }
        for record in records
    )
    if others := [name for name in one_work if one_work[name] != other_work[name]]:
        raise ComparisonError(
            f"{folders[0]} and {folders[1]} had another {' and '.join(others)}, so their steps are "
            "not the same; give two runs of one study, both timed or both profiled, and one repeat"
        )
    lines = [
        f"{name}: {folder}, strategy {record.spec.strategy}, "
        + plural(record.spec.world.size, "rank")
        for name, folder, record in zip("AB", folders, records, strict=True)
    ]
    one, other = (_series(record) for record in records)
    rows: list[tuple[str, ...]] = [("series", "from step", "A", "B", "apart", "most", "in step")]
    for name in (name for name in one if name in other):
        steps = sorted(one[name].keys() & other[name].keys())
        a, b = (np.array([side[name][step] for step in steps]) for side in (one, other))
        apart = relative_deviation(b, a)
        most = int(np.argmax(apart))
        beyond = np.flatnonzero(apart > allowed)
        first = [NONE] * 4
        if beyond.size:
            at = beyond[0]
            first = [str(steps[at]), *(significant(float(s[at]), 6) for s in (a, b))]
            first.append(scientific(float(apart[at])))
        rows.append((name, *first, scientific(float(apart[most])), str(steps[most])))
    same = all(row[1] == NONE for row in rows[1:])
    if len(rows) == 1 + len(SERIES):
        lines.append("Gradients of blocks are kept by profiled runs alone, such as p0.")
    return [*lines, "", *align(rows)], same


def _series(record: RunRecord) -> dict[str, dict[int, float]]:
    """Values by step: loss, gradient norm and, of a profiled run, the norm of each block.

    Blocks have their shares of the norm before clipping, which scales all of them alike.
    """
    series: dict[str, dict[int, float]] = {name: {} for name in SERIES}
    squares: dict[int, Counter[str]] = {}
    for step in record.steps:
        squares.setdefault(step.step, Counter()).update(step.squares or {})
        for name, key in SERIES.items():
            value = getattr(step, key)
            series[name][step.step] = math.nan if value is None else value
    for number, blocks in squares.items():
        whole, norm = sum(blocks.values()), series["gradient norm"][number]
        for name, square in blocks.items():
            share = math.sqrt(square / whole) if whole else 0.0
            series.setdefault(name, {})[number] = norm * share
    return series
