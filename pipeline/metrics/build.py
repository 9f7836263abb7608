"""All metrics of a study: from its run records to one tidy table."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pipeline.metrics.cells import Groups, cell_rows, cost_rows, exactness_rows, group_runs
from pipeline.metrics.collect import read_all
from pipeline.metrics.contrasts import contrast_rows, switch_rows
from pipeline.metrics.emulation import accuracies, are_in_real_time, bias_from
from pipeline.metrics.labels import cell_labels, label_of, run_context
from pipeline.metrics.network_bound import network_bound_rows
from pipeline.metrics.parity import parity_rows
from pipeline.metrics.profile import profile_rows
from pipeline.metrics.runs import FREELY, Run, load_run, outcome_rows, run_rows
from pipeline.metrics.statistics import NOT_TESTED, drift
from pipeline.metrics.table import assemble, row, rows
from pipeline.study.expansion import expand, in_real_time, profiled, run_order
from pipeline.study.study import Study


def build(study: Study, runs: Path, uncertainty: float = 0.0) -> pd.DataFrame:
    """The tidy table of a study; raises RecordError on a missing or unfit record.

    `uncertainty` is that of the study's yardstick (`load_uncertainty`).
    """
    planned = expand(study)
    records = read_all(study, planned, runs)
    real = read_all(study, in_real_time(study), runs)
    labels = cell_labels(study, records)
    loaded = [load_run(record, label_of(labels, record)) for record in records]
    about: list[dict[str, Any]] = [{"metric": "compares", "text": " ".join(study.compares)}]
    # One clock for all throughputs of a study: emulated nodes and earlier records have one alone.
    if all(run.free_seconds is not None for run in loaded if run.ok):
        loaded = [replace(run, freely=True) for run in loaded]
        about.append({"metric": "throughput_clock", "text": FREELY})
    groups = group_runs(loaded)
    accurate = accuracies(real, groups)
    bias = bias_from(accurate, uncertainty)
    # Where no time was dilated there is nothing that it could be off by.
    if bias is None and not real and are_in_real_time(records):
        bias = 0.0
    plan = [spec.run_id for spec in run_order(planned)]
    if bias is not None:
        about.append(row("emulation_bias", "1", bias))
    about += [*order_rows(loaded, groups, plan), *exactness_rows(groups)]
    parity = parity_rows(groups)
    return assemble(
        [
            rows({"study": study.name, "level": "study"}, about),
            *cell_rows(groups),
            *cost_rows(study.target_loss, groups),
            *network_bound_rows(groups),
            *parity,
            *contrast_rows(groups, study.compares, parity, bias),
            *switch_rows(study, groups),
            *(own for own, _ in accurate),
            *(
                rows(run_context(one, label_of(labels, one)) | {"level": "real_time"}, values)
                for one, values in zip(real, map(outcome_rows, real), strict=True)
            ),
            *profile_rows(read_all(study, profiled(study), runs), labels, groups),
            *(part for one in loaded for part in run_rows(one)),
        ]
    )


def order_rows(runs: Sequence[Run], groups: Groups, plan: Sequence[str]) -> list[dict[str, Any]]:
    """Rows of level `study`: how far the plan was kept, and the drift over the order.

    `plan` holds the ids of all runs of the study in their planned order, which is random within
    each repeat; what happened is in the records' `started_at`, since a repeated or resumed run
    starts later than planned.
    """
    times = ("started_at", "ended_at")
    executed = sorted(runs, key=lambda r: (*(r.record.run[t] for t in times), r.record.spec.run_id))
    places = [plan.index(run.record.spec.run_id) for run in executed]
    kept = longest_rise(places)
    order = "random within each repeat, fixed by the seeds"
    text = f"{order}; {kept} of {len(places)} runs were executed in this order"
    # Medians of the runs, each relative to that of its cell: cells differ, drift is what is left.
    relative = []
    for run in executed:
        group = groups[run.context["cell"], run.context["nodes"]]
        if run.ok and len(group.ok) > 1:
            relative.append(float(np.median(run.timed_seconds)) / group.step_seconds.value)
    over_order = drift(np.asarray(relative, dtype=np.float64))
    return [
        row("order_kept", "count", float(kept), n=len(places), text=text),
        {"metric": "order_drift", "text": NOT_TESTED}
        if over_order is None
        else row("order_drift", "1", over_order.share, n=over_order.n, text=over_order.verdict),
    ]


def longest_rise(places: Sequence[int]) -> int:
    """Length of the longest subsequence that rises: how many stand in order at most."""
    ends: list[int] = []
    for place in places:
        at = bisect_left(ends, place)
        ends[at : at + 1] = [place]
    return len(ends)
