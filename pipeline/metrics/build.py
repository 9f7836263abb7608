"""All metrics of a study: from its run records to one tidy table."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pipeline.errors import RecordError
from pipeline.metrics.cells import Groups, cell_rows, cost_rows, exactness_rows, group_runs
from pipeline.metrics.contrasts import contrast_rows, switch_rows
from pipeline.metrics.emulation import accuracy
from pipeline.metrics.labels import cell_labels, cell_of
from pipeline.metrics.network_bound import network_bound_rows
from pipeline.metrics.parity import parity_rows
from pipeline.metrics.profile import profile_rows
from pipeline.metrics.runs import FREELY, Run, drift_row, load_run, outcome_rows, run_rows
from pipeline.metrics.table import Rows, assemble, row
from pipeline.records import RUN_FILE, RunRecord, read_record
from pipeline.study.expansion import expand, in_real_time, profiled, run_order
from pipeline.study.spec import RunSpec
from pipeline.study.study import Study


def build(study: Study, runs: Path, uncertainty: float = 0.0) -> pd.DataFrame:
    """The tidy table of a study; raises RecordError on a missing or unfit record.

    `uncertainty` is that of the study's yardstick (`load_uncertainty`).
    """
    planned = expand(study)
    kinds = planned, in_real_time(study), profiled(study)
    records = [read_all(study, specs, runs) for specs in kinds]
    labels = cell_labels(study, records[0])
    loaded, real, for_profile = (
        [load_run(record, labels[cell_of(record)]) for record in kind] for kind in records
    )
    about: list[dict[str, Any]] = [{"metric": "compares", "text": " ".join(study.compares)}]
    # One clock for all throughputs of a study: emulated nodes and earlier records have one alone.
    if all(run.free_seconds is not None for run in loaded if run.ok):
        loaded = [replace(run, freely=True) for run in loaded]
        about.append({"metric": "throughput_clock", "text": FREELY})
    groups = group_runs(loaded)
    accurate, bias = accuracy(loaded, real, groups, uncertainty)
    plan = [spec.run_id for spec in run_order(planned)]
    if bias is not None:
        about.append(row("emulation_bias", "1", bias))
    about += [*order_rows(loaded, groups, plan), *exactness_rows(groups)]
    parity = parity_rows(groups)
    formula = "bai2022" in study.claims
    return assemble(
        [
            Rows({"study": study.name, "level": "study"}, about),
            *cell_rows(groups),
            *cost_rows(study.target_loss, groups),
            *network_bound_rows(groups),
            *parity,
            *contrast_rows(groups, study.compares, parity, bias),
            *switch_rows(study, groups),
            *accurate,
            *(Rows({**r.context, "level": "real_time"}, outcome_rows(r.record)) for r in real),
            *profile_rows(for_profile, groups),
            *(part for one in loaded for part in run_rows(one, formula=formula)),
        ]
    )


def read_all(study: Study, specs: Sequence[RunSpec], runs: Path) -> list[RunRecord]:
    """The records of these runs of a study, in their order.

    Raises RecordError where one is missing, invalid, or that of another training. All are read
    before it is raised, so that it lists all that is wrong.
    """
    folders = [runs / spec.folder for spec in specs]
    if missing := [folder for folder in folders if not (folder / RUN_FILE).is_file()]:
        raise RecordError(
            f"{missing[0] / RUN_FILE} does not exist ({len(missing)} of {len(specs)} runs are "
            f"missing); run the training of study {study.name!r} first"
        )
    records, faults = [], []
    for spec, folder in zip(specs, folders, strict=True):
        try:
            record = read_record(folder)
        except RecordError as error:
            faults.append(str(error))
            continue
        records.append(record)
        if record.spec.identity() != spec.identity():
            asked, ran = (flat(one.training().to_dict()) for one in (spec, record.spec))
            differ = (key for key in sorted({*asked, *ran}) if asked.get(key) != ran.get(key))
            key = next(differ, "*")
            faults.append(
                f"{folder / RUN_FILE} at $.spec.{key} is {ran.get(key)!r}, the study says "
                f"{asked.get(key)!r}: the run was made from another version of the study; delete "
                "the folder and run the training again"
            )
    if faults:
        more = f" (and {len(faults) - 1} more: {'; '.join(faults[1:4])})" if faults[1:] else ""
        raise RecordError(
            f"{len(faults)} of {len(specs)} records cannot be used: {faults[0]}{more}"
        )
    return records


def flat(value: Mapping[str, Any], at: str = "", depth: int = 99) -> dict[str, Any]:
    """The values of mappings within mappings by their path, such as `world.nodes`."""
    values: dict[str, Any] = {}
    for key, part in value.items():
        inner = isinstance(part, Mapping) and depth > 1
        values |= flat(part, f"{at}{key}.", depth - 1) if inner else {f"{at}{key}": part}
    return values


def order_rows(runs: Sequence[Run], groups: Groups, plan: Sequence[str]) -> list[dict[str, Any]]:
    """Rows of level `study`: how far the plan was kept, and the drift over the order.

    `plan` holds the ids of all runs of the study in their planned order, which is random within
    each repeat; what happened is in the records' `started_at`, since a repeated or resumed run
    starts later than planned.
    """
    times = ("started_at", "ended_at")
    executed = sorted(runs, key=lambda r: (*(r.record.run[t] for t in times), r.record.spec.run_id))
    # As many were in order as the longest subsequence has whose places in the plan rise; `ends` has
    # the smallest end of one of each length.
    ends: list[int] = []
    for place in (plan.index(run.record.spec.run_id) for run in executed):
        at = bisect_left(ends, place)
        ends[at : at + 1] = [place]
    kept, n = len(ends), len(executed)
    order = "random within each repeat, fixed by the seeds"
    text = f"{order}; {kept} of {n} runs were executed in this order"
    # Medians of the runs, each relative to that of its cell: cells differ, drift is what is left.
    relative = []
    for run in executed:
        group = groups[run.context["cell"], run.context["nodes"]]
        if run.ok and len(group.ok) > 1:
            relative.append(float(np.median(run.timed_seconds)) / group.step_seconds.value)
    return [
        row("order_kept", "count", float(kept), n=n, text=text),
        drift_row("order_drift", np.asarray(relative, dtype=np.float64)),
    ]
