"""The throughput that links allow at most."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from pipeline.metrics.build import build
from pipeline.metrics.select import pick
from pipeline.study.study import Study
from tests.fake_records import (
    EMULATED,
    edit_record,
    make_study,
    make_table,
    rank_environment,
    row_of,
    write_records,
)

CELLS = [
    {"name": "dps", "label": "DDP", "strategy": "ddp", "precision": "fp32"},
    {"name": "narrow", "label": "O2", "strategy": "ddp", "precision": "amp_o2"},
]


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return make_table(cells=CELLS, repeats=1, cluster=EMULATED)


def bound(table: pd.DataFrame, cell: str, nodes: int) -> float:
    return float(row_of(table, "network_bound_tokens_per_second", cell, nodes)["value"])


def test_a_ring_over_four_nodes_sends_one_and_a_half_gradients(table: pd.DataFrame) -> None:
    seconds = 1.5 * 1_071_872 * 4 * 8 / 1e9
    assert bound(table, "dps-fast", 4) == pytest.approx(16 * 128 / seconds)
    assert bound(table, "dps-slow", 4) == pytest.approx(16 * 128 / seconds / 5)
    assert bound(table, "dps-fast", 2) == pytest.approx(1.5 * bound(table, "dps-fast", 4))
    assert bound(table, "narrow-fast", 4) == pytest.approx(2 * bound(table, "dps-fast", 4))


def test_one_node_and_a_loopback_have_no_such_bound(table: pd.DataFrame) -> None:
    rows = pick(table, "cell", "network_bound_tokens_per_second")
    assert 1 not in set(rows["nodes"])
    assert "share_of_network_bound" not in set(make_table(repeats=1)["metric"])


@pytest.mark.parametrize(("backend", "bound"), [("gloo", True), ("nccl", False)])
def test_no_bound_comes_of_an_interface_that_nccl_may_not_use(tmp_path, backend, bound) -> None:
    device = {"gloo": "cpu", "nccl": "cuda"}[backend]
    cluster = {"device": device, "ranks_per_node": 1, "nodes": [1, 2], "backend": backend,
               "network": "real"}  # fmt: skip
    study = make_study(cells=CELLS[:1], repeats=1, cluster=cluster)
    account = {"network": "Socket", "cards": ["eth0"], "channels": 2,
               "transports": ["NET/Socket"], "tcp": True}  # fmt: skip
    write_records(tmp_path, study)

    def edit(run: dict[str, Any]) -> None:
        for rank in run["ranks"]:
            rank["environment"] = rank_environment() | {"interface_mbits": 1000}
            rank |= {"nccl": account} if backend == "nccl" else {}

    for folder in tmp_path.glob("**/n2/r*"):
        edit_record(folder, edit)
    found = build(Study.of(study), tmp_path)
    assert ("network_bound_tokens_per_second" in set(found["metric"])) == bound
    assert (found["metric"] == "nccl_tcp").sum() == (0 if bound else 1)
