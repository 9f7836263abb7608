"""What the table says of TCP on emulated nodes, and of runs that stalled."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pipeline.metrics.runs import load_run, run_rows
from pipeline.records import RunRecord
from pipeline.study.expansion import expand
from pipeline.study.study import Study
from tests.fake_records import EMULATED, make_record, make_study

LABEL = {"label": "DDP", "cell_order": 0, "precision_ran": "torch fp32"}
SAID = "node 1 had TCPTimeouts 7"


def facts(record: RunRecord) -> dict[str, tuple[float | None, str | None]]:
    rows = run_rows(load_run(record, LABEL))[0]
    names, values, texts = (rows.column(name) for name in ("metric", "value", "text"))
    return dict(zip(names, zip(values, texts, strict=True), strict=True))


@pytest.fixture
def record() -> RunRecord:
    study = make_study(cluster=EMULATED)
    return make_record(
        next(r for r in expand(Study.of(study)) if r.cell == "dps-fast" and r.world.nodes == 4)
    )


def with_emulation(record: RunRecord, **changes: Any) -> RunRecord:
    execution = dict(record.run["execution"])
    emulation = execution["emulation"] | changes
    execution["emulation"] = {k: v for k, v in emulation.items() if v is not None}
    return replace(record, run={**record.run, "execution": execution})


def test_time_outs_are_in_time_of_the_cluster(record) -> None:
    found = facts(record)
    assert found["tcp_rto_min_seconds"][0] == pytest.approx(0.2)  # 400 ms at a dilation of 2
    assert found["tcp_congestion_control"][1] == "reno"
    assert found["tcp_slow_start_after_idle"][0] == 0.0


def test_a_stalled_run_is_a_row_with_the_line_of_its_record(record) -> None:
    assert facts(record)["stalled"] == (0.0, "no")
    assert facts(with_emulation(record, stalled=SAID))["stalled"] == (1.0, SAID)


def test_records_from_before_that_say_nothing_of_it(record) -> None:
    found = facts(with_emulation(record, tcp=None))
    assert not [name for name in found if name.startswith(("tcp", "stalled"))]


def test_its_steps_stay_in_the_data(record) -> None:
    marked = load_run(with_emulation(record, stalled=SAID), LABEL)
    assert marked.ok and len(marked.timed_seconds) == len(load_run(record, LABEL).timed_seconds)
