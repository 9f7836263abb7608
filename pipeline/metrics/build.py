"""All metrics of a study: from its run records to one tidy table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from pipeline.metrics import table
from pipeline.metrics.cells import cell_rows, exactness_rows, group_runs
from pipeline.metrics.collect import collect, read_all
from pipeline.metrics.contrasts import contrast_rows
from pipeline.metrics.emulation import accuracies, bias_from, real_time_rows
from pipeline.metrics.labels import cell_labels, label_of
from pipeline.metrics.network_bound import network_bound_rows
from pipeline.metrics.order import order_rows
from pipeline.metrics.parity import parity_rows
from pipeline.metrics.profile import profile_rows
from pipeline.metrics.runs import load_run, run_rows
from pipeline.study.expansion import expand, run_order
from pipeline.study.profiling import profiled
from pipeline.study.real_time import in_real_time
from pipeline.study.study import Study


def build(study: Study, runs: Path, uncertainty: float = 0.0) -> pd.DataFrame:
    """The tidy table of a study; raises RecordError on a missing or unfit record.

    `uncertainty` is that of the study's yardstick (`load_uncertainty`).
    """
    records = collect(study, runs)
    real = read_all(study, in_real_time(study), runs)
    labels = cell_labels(study, records)
    loaded = [load_run(record, label_of(labels, record)) for record in records]
    groups = group_runs(loaded)
    accurate = accuracies(real, groups)
    bias = bias_from((ratio for _, ratio in accurate), uncertainty)
    about: list[dict[str, Any]] = [
        {"metric": "title", "text": study.title},
        {"metric": "compares", "text": " ".join(study.compares)},
    ]
    plan = [spec.run_id for spec in run_order(expand(study))]
    if bias is not None:
        about.append(table.row("emulation_bias", "1", bias))
    about += [*order_rows(loaded, groups, plan), *exactness_rows(groups)]
    parity = parity_rows(groups)
    return table.assemble(
        [
            table.rows({"study": study.name, "level": "study"}, about),
            *cell_rows(groups),
            *network_bound_rows(groups),
            *parity,
            *contrast_rows(groups, study.compares, parity, bias),
            *(rows for rows, _ in accurate),
            *real_time_rows(real, labels),
            *profile_rows(read_all(study, profiled(study), runs), labels, groups),
            *(found for one in loaded for found in run_rows(one)),
        ]
    )
