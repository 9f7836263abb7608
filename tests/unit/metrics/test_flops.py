"""FLOP utilisation by hand, and the throughput that links allow at most."""

from typing import Any

import pandas as pd
import pytest

from pipeline.metrics.flops import peak_per_rank
from pipeline.metrics.runs import load_run, run_rows
from pipeline.records import RunRecord
from tests.fake_records import (
    EMULATED,
    a_cell,
    edit_record,
    edited,
    edited_table,
    make_record,
    make_table,
    pick,
    rank_environment,
    row_of,
    spec_of,
)

LABEL = {"label": "DDP", "cell_order": 0, "precision_ran": "torch fp32"}
PEAK = 5e11


def values(record: RunRecord) -> dict[str, float]:
    rows = run_rows(load_run(record, LABEL))[0]
    return {row["metric"]: row["value"] for row in rows.values if "value" in row}


def record_of(nodes: int, peak: float | None = PEAK, num_cores: int = 8) -> RunRecord:
    def edit(run: dict[str, Any]) -> None:
        run["hardware"]["num_cores"] = num_cores
        for rank in run["ranks"]:
            rank["peak_flops_per_second"] = peak
            if peak is None:
                del rank["peak_flops_per_second"]

    return edited(make_record(spec_of(nodes=nodes)), edit)


def test_utilisation_is_flops_per_second_over_the_summed_peaks_if_any() -> None:
    record = record_of(2)
    found = values(record)
    flops = record.run["model"]["flops_per_token"] * found["tokens_per_second"]
    assert found["model_flops_utilisation"] == pytest.approx(flops / (2 * PEAK))
    assert found["hardware_flops_utilisation"] == found["model_flops_utilisation"]
    assert "model_flops_utilisation" not in values(record_of(2, peak=None))


def test_recomputed_activations_are_hardware_flops_and_no_model_flops() -> None:
    def recomputing(what: object) -> dict[str, float]:
        return values(edited(record, lambda run: run["spec"]["workload"].update(recompute=what)))

    record = record_of(2)
    kept, found, alone = map(recomputing, (False, True, "attention"))
    assert found["model_flops_utilisation"] == kept["model_flops_utilisation"]
    more = found["hardware_flops_utilisation"] - kept["hardware_flops_utilisation"]
    model = record.spec.model
    flops = model.num_layers * model.width * (16 * model.width + 4 * model.context)
    assert more == pytest.approx(flops * found["tokens_per_second"] / (2 * PEAK))
    less = alone["hardware_flops_utilisation"] - kept["hardware_flops_utilisation"]
    assert less / more == pytest.approx(model.context / (4 * model.width + model.context))


def test_padding_is_hardware_flops_and_no_model_flops() -> None:
    record = record_of(2)
    padded = edited(record, lambda run: [rank.update(padding_share=0.25) for rank in run["ranks"]])
    kept, found = values(record), values(padded)
    share = found["model_flops_utilisation"] / kept["model_flops_utilisation"]
    assert share == pytest.approx(0.75)
    assert found["hardware_flops_utilisation"] == kept["hardware_flops_utilisation"]
    assert found["tokens_per_second"] == kept["tokens_per_second"]


def test_threads_that_share_cores_share_their_peak() -> None:
    assert peak_per_rank(record_of(4, num_cores=4)) == PEAK
    assert peak_per_rank(record_of(4, num_cores=2)) == PEAK / 2
    two_cores = record_of(4, num_cores=2)
    real = edited(two_cores, lambda run: run["spec"]["world"].update(network="real"))
    assert peak_per_rank(real) == PEAK


CELLS = [a_cell("dps"), a_cell("narrow", precision="amp_o2")]


@pytest.fixture(scope="module")
def emulated() -> pd.DataFrame:
    return make_table(cells=CELLS, repeats=1, cluster=EMULATED)


def bound(emulated: pd.DataFrame, cell: str, nodes: int) -> float:
    return float(row_of(emulated, "network_bound_tokens_per_second", cell, nodes)["value"])


def test_a_ring_over_four_nodes_sends_one_and_a_half_gradients(emulated: pd.DataFrame) -> None:
    seconds = 1.5 * 1_071_872 * 4 * 8 / 1e9
    assert bound(emulated, "dps-fast", 4) == pytest.approx(16 * 128 / seconds)
    assert bound(emulated, "dps-slow", 4) == pytest.approx(16 * 128 / seconds / 5)
    assert bound(emulated, "dps-fast", 2) == pytest.approx(1.5 * bound(emulated, "dps-fast", 4))
    assert bound(emulated, "narrow-fast", 4) == pytest.approx(2 * bound(emulated, "dps-fast", 4))
    assert 1 not in set(pick(emulated, "cell", "network_bound_tokens_per_second")["nodes"])
    assert "share_of_network_bound" not in set(make_table(repeats=1)["metric"]), "on a loopback"


@pytest.mark.parametrize(("backend", "bound"), [("gloo", True), ("nccl", False)])
def test_no_bound_comes_of_an_interface_that_nccl_may_not_use(tmp_path, backend, bound) -> None:
    device = {"gloo": "cpu", "nccl": "cuda"}[backend]
    cluster = {"device": device, "ranks_per_node": 1, "nodes": [1, 2], "backend": backend,
               "network": "real"}  # fmt: skip
    account = {"network": "Socket", "cards": ["eth0"], "channels": 2,
               "transports": ["NET/Socket"], "tcp": True}  # fmt: skip

    def edit(run: dict[str, Any]) -> None:
        for rank in run["ranks"]:
            rank["environment"] = rank_environment() | {"interface_mbits": 1000}
            rank |= {"nccl": account} if backend == "nccl" else {}

    found = edited_table(
        tmp_path, lambda runs: edit_record(runs / "dps/n2/r0", edit),
        cells=CELLS[:1], repeats=1, cluster=cluster,
    )  # fmt: skip
    assert ("network_bound_tokens_per_second" in set(found["metric"])) == bound
    assert (found["metric"] == "nccl_tcp").sum() == (0 if bound else 1)
