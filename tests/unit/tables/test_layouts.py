"""The table of layouts: what each costs, beside its formula."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest

from pipeline.metrics import select
from pipeline.metrics.build import build
from pipeline.metrics.collect import run_folder
from pipeline.metrics.format import NONE
from pipeline.records import RunRecord, Step, write_record
from pipeline.study.study import Study
from tests.fake_records import made, make_record, make_study, spec_of, write_records

PIPELINE = {"strategy": "pipeline_parallel", "options": {"ranks": 2, "microbatches": 2}}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    """Of the fake study with a pipeline of two stages in place of DDP, whose passes are known."""
    plain = make_study(profile={"steps": 4})
    cells = [c | (PIPELINE | {"nodes": [4]} if c["name"] == "dps" else {}) for c in plain["cells"]]
    study = plain | {"cells": cells}
    runs = write_records(tmp_path_factory.mktemp("runs"), study)
    spec = spec_of(nodes=4, profile={"steps": 4}, cells=cells)
    record = make_record(spec)
    calls = [{"kind": "send", "axis": axis, "ranks": 2, "count": 1,
              "payload_bytes": 3_000_000, "wire_bytes": 3_000_000}
             for axis in ("pipeline", "data")]  # fmt: skip
    sent = {"steps": 4, "differing_steps": 0, "collectives": calls}
    ranks = [rank | {"sent": sent} for rank in record.run["ranks"]]
    steps = [with_passes(step) for step in record.steps]
    write_record(run_folder(runs, spec), RunRecord({**record.run, "ranks": ranks}, steps))
    return build(Study.of(study), runs)


def with_passes(step: Step) -> Step:
    """Ranks 0 and 1 hold the first stage, 2 and 3 the last: GPipe of two equal micro-batches."""
    stage, seconds = step.rank // 2, step.seconds / 100
    order = [("forward", 0, 1), ("forward", 1, 1), ("backward", 0, 2), ("backward", 1, 2)]
    return replace(step, passes=[[kind, stage, m, n * seconds] for kind, m, n in order])


def test_each_cost_stands_beside_its_formula(table: pd.DataFrame) -> None:
    frame, shown = made("layouts", table)
    [single, pipeline] = (
        next(row for row in select.records(frame) if (row["cell"], row["nodes"]) == place)
        for place in (("single", 1), ("dps", 4))
    )
    accumulation = make_study()["workload"]["accumulation_steps"]
    assert pipeline["phase_bubble_formula"] == pytest.approx(1 / (2 * accumulation))
    # two micro-batches of two stages; the durations of the ranks differ by their noise
    assert pipeline["phase_bubble"] == pytest.approx(1 / 2, rel=0.1)
    assert pipeline["phase_bubble_schedule"] == pytest.approx(1 / 2)
    # What the run itself says is what claims on bubbles are tested by.
    [own] = select.pick(table, "profile", "phase_bubble")["value"]
    assert own == pipeline["phase_bubble"]
    assert pipeline["sent_bytes"] == 6_000_000
    assert pipeline["predicted_sent_bytes"] > 0
    ideal = single["step_seconds"] / 4 * (1 + pipeline["phase_bubble_formula"])
    assert pipeline["ideal_seconds"] == pytest.approx(ideal)
    assert pd.notna(pipeline["memory_bytes"]) and pipeline["predicted_memory_bytes"] > 0
    assert shown.loc[list(frame["cell"]).index("dps"), "Sent [MB]"] == "6.00"
    assert set(shown.loc[frame["cell"] == "horovod", "Bubble [%]"]) == {NONE}
