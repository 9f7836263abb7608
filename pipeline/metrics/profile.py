"""What the profiled runs say: how the time of a step divides into phases.

Rows of level `profile` are about one profiled run or one of its ranks, rows of level `cell` about
the steps of that run, each the mean over its ranks. No time of a profiled run goes anywhere else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from pipeline.metrics.cells import Group, Groups, bounds
from pipeline.metrics.labels import run_context
from pipeline.metrics.parity import relative_deviation
from pipeline.metrics.runs import load_run
from pipeline.metrics.statistics import Floats, median_interval, repeats_interval
from pipeline.metrics.table import rows
from pipeline.profiling import IN_STEP, PHASES
from pipeline.records import RunRecord
from pipeline.records.record import texts

MEAN = "arithmetic mean over the profiled steps and the ranks; the parts add up to the whole"


def profile_frames(
    records: Iterable[RunRecord], labels: Mapping[str, Mapping[str, Any]], groups: Groups
) -> list[pd.DataFrame]:
    """All rows of the profiled runs; one that is not ok has its status and times only."""
    frames = []
    for record in records:
        group = groups[record.spec.cell, record.spec.world.nodes]
        context = run_context(record, labels[record.spec.cell])
        found = [
            _row("status", "1", float(record.status == "ok"), text=record.status),
            *({"level": "profile", "metric": name, "text": record.run[name]}
              for name in ("started_at", "ended_at")),
            _row("record_bytes", "bytes", float(sum(map(len, texts(record).values())))),
        ]  # fmt: skip
        if record.status == "ok":
            steps = phase_steps(record)
            found += [*_ranks(steps), *_against_timed(record, group)]
            frames.append(rows(group.context, _cell(steps)))
        frames.append(rows(context, found))
    return frames


def phase_steps(record: RunRecord) -> pd.DataFrame:
    """One row for each profiled step and rank: its phases and `step`, all in seconds."""
    found = [
        {"at": s.step, "rank": s.rank, "step": s.seconds, **(s.phases or {})}
        for s in record.steps
        if s.timed
    ]
    return pd.DataFrame(found)


def _row(metric: str, unit: str, value: float, **more: Any) -> dict[str, Any]:
    return {"level": "profile", "metric": metric, "unit": unit, "value": value, **more}


def _ranks(steps: pd.DataFrame) -> list[dict[str, Any]]:
    """Median seconds of each phase on each rank, so that it is seen which rank waits for which."""
    return [
        {"level": "profile", "metric": f"phase_seconds:{name}", "unit": "s", "rank": rank,
         **bounds(median_interval(own[name].to_numpy(dtype=np.float64)))}
        for rank, own in steps.groupby("rank", sort=True)
        for name in PHASES
    ]  # fmt: skip


def _against_timed(record: RunRecord, group: Group) -> list[dict[str, Any]]:
    """How far the profiled run is from the timed one of its repeat, in training and in time."""
    repeat = record.spec.repeat
    timed = next((run for run in group.ok if run.record.spec.repeat == repeat), None)
    if timed is None:
        return []
    own, count = load_run(record, {}), record.spec.workload.steps
    pairs = ((own.loss, timed.loss[:count]), (own.grad_norm, timed.grad_norm[:count]))
    apart = max(float(relative_deviation(one, other).max()) for one, other in pairs)
    slower = float(np.median(own.timed_seconds)) / group.step_seconds.value
    base = str(timed.context["run_id"])
    return [
        _row("profile_deviation", "1", apart, base=base,
             text="largest of loss and gradient norm over all steps; 0 is the same to the bit"),
        _row("profile_slowdown", "1", slower, base="the timed runs",
             text="median step of the profiled run over that of the timed ones"),
    ]  # fmt: skip


def _cell(steps: pd.DataFrame) -> list[dict[str, Any]]:
    """Seconds of each phase, its share of the step, and the means that add up."""
    each = steps.drop(columns="rank").groupby("at", sort=True).mean()
    values = [_interval(f"phase_seconds:{name}", "s", _floats(each[name])) for name in PHASES]
    values += [
        _interval(f"phase_share:{name}", "1", _floats(each[name] / each["step"]))
        for name in IN_STEP
    ]
    means = [
        {"level": "cell", "metric": f"phase_mean_seconds:{name}", "unit": "s", "n": len(each),
         "value": float(each[name].mean()), "text": MEAN}
        for name in PHASES
    ]  # fmt: skip
    return [*values, *means]


def _interval(metric: str, unit: str, steps: Floats) -> dict[str, Any]:
    return {"level": "cell", "metric": metric, "unit": unit, **bounds(repeats_interval([steps]))}


def _floats(column: pd.Series) -> Floats:
    return column.to_numpy(dtype=np.float64)
