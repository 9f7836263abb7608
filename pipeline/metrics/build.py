"""All metrics of a study: from its run records to one tidy table."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from pipeline.metrics import table
from pipeline.metrics.cells import cell_frames, group_runs
from pipeline.metrics.collect import collect, collect_profiled
from pipeline.metrics.contrasts import all_cells_rows, contrast_frames
from pipeline.metrics.labels import cell_labels, label_of
from pipeline.metrics.order import order_frames, order_rows
from pipeline.metrics.parity import parity_frames
from pipeline.metrics.profile import profile_frames
from pipeline.metrics.runs import load_run, run_frames
from pipeline.study.expansion import expand, run_order
from pipeline.study.study import Study


def build(study: Study, runs: Path) -> pd.DataFrame:
    """The tidy table of a study; raises RecordError on a missing or unfit record."""
    records = collect(study, runs)
    labels = cell_labels(study, records)
    loaded = [load_run(record, label_of(labels, record)) for record in records]
    groups = group_runs(loaded)
    facts = {"title": study.title, "compares": " ".join(study.compares)}
    about = [{"level": "study", "metric": name, "text": text} for name, text in facts.items()]
    plan = [spec.run_id for spec in run_order(expand(study))]
    about += [*order_rows(loaded, groups, plan), *all_cells_rows(groups)]
    parity = parity_frames(groups)
    return table.assemble(
        [
            table.rows({"study": study.name}, about),
            *cell_frames(groups),
            *parity,
            *contrast_frames(groups, study.compares, parity),
            *order_frames(loaded),
            *profile_frames(collect_profiled(study, runs), labels, groups),
            *(frame for one in loaded for frame in run_frames(one)),
        ]
    )
