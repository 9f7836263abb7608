"""Weak scaling: batches follow the data axis, references do equal work, words follow the data."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from pipeline.metrics.results import Results
from pipeline.paper.numbers import _workload
from pipeline.study.equal_work import batch_per_rank, check_equal_work
from pipeline.study.expansion import expand
from pipeline.study.study import Study
from tests.fake_records import a_cell, made, make_study, make_table, row_of

WEAK = {**make_study()["workload"], "scaling": "weak", "global_batch": 4}
SINGLE = a_cell("single", "single", nodes=[1])
WHOLE = SINGLE | {
    "name": "single-16",
    "workload": {"scaling": "strong", "global_batch": 16, "accumulation_steps": 4},
}
"""The global batch of four ranks on one device, by accumulation."""
DPS, RING, TENSOR = a_cell("dps"), a_cell("ring", "horovod"), a_cell("cut", "tensor")


CHANGES: dict[str, Any] = {"workload": WEAK, "repeats": 1, "compares": ["global_batch"]}


def study_of(*cells: dict[str, Any]) -> dict[str, Any]:
    return make_study(**CHANGES, cells=list(cells))


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return make_table(**CHANGES, cells=[SINGLE, WHOLE, DPS, RING])


def text(table: pd.DataFrame, cell: str, nodes: int, metric: str, column: str) -> Any:
    return row_of(table, metric, cell, nodes)[column]


def test_weak_scaling_multiplies_by_the_ranks_of_the_data_axis_alone() -> None:
    cells = [DPS, TENSOR, {**TENSOR, "name": "both", "options": {"ranks": 2}, "nodes": [2, 4]}]
    specs = expand(Study.of(study_of(*cells)))
    batches = {(s.cell, s.world.nodes): s.workload.global_batch for s in specs}
    assert batches == {
        ("dps", 1): 4, ("dps", 2): 8, ("dps", 4): 16,
        ("cut", 1): 4, ("cut", 2): 4, ("cut", 4): 4,
        ("both", 2): 4, ("both", 4): 8,
    }  # fmt: skip
    assert {batch_per_rank(spec) for spec in specs} == {4.0}
    check_equal_work(Study.of(study_of(*cells)).but(compares=None))


def test_parity_under_weak_scaling_is_against_the_whole_batch_by_accumulation(table) -> None:
    for cell in ("dps", "ring"):
        assert text(table, cell, 4, "parity_verdict", "base") == "single-16, 1 node"
        assert text(table, cell, 4, "parity_verdict", "text") == "equal"
        assert text(table, cell, 1, "parity_verdict", "base") == "single, 1 node"


def test_without_such_a_run_parity_is_against_the_first_cell_of_that_world(table) -> None:
    assert text(table, "ring", 2, "parity_verdict", "base") == "dps, 2 nodes"
    assert text(table, "ring", 2, "parity_verdict", "text") == "equal"
    assert "global_batch differ" in text(table, "dps", 2, "parity_verdict", "text")


def test_the_speedup_of_weak_scaling_is_scaled_and_its_base_has_the_batch_of_a_device(
    table,
) -> None:
    assert text(table, "dps", 4, "speedup", "base") == "single, 1 node"
    assert text(table, "dps", 4, "ideal_speedup", "value") == 4.0
    weak = table[table["cell"] != "single-16"]
    assert Results(weak).speedup_name == "scaled speedup"
    assert "scaled" in Results(table).speedup_name
    assert "Scaled speedup" in made("scaling", weak)[1]
    assert "Scaled speedup" in made("summary", weak)[1]


def test_words_on_the_batch_follow_the_data(table) -> None:
    study = Study.of(study_of(SINGLE, WHOLE, DPS, RING))
    weak = table[table["cell"] != "single-16"]
    facts = _workload(study, Results(weak))
    assert facts["equal"] and facts["same"].endswith("so that the whole grows with them")
    assert not _workload(study, Results(table))["equal"]
