"""What readers of the table ask: rows in order, links, scaling, and the result in sentences."""

from typing import Any

import pandas as pd
import pytest

from pipeline.claims.judge import judge
from pipeline.claims.worlds import Evidence
from pipeline.metrics.headline import headline, planned
from pipeline.metrics.labels import short_label
from pipeline.metrics.results import Results
from pipeline.metrics.table import check
from pipeline.study.equal_work import batch_per_rank, check_equal_work
from pipeline.study.expansion import expand
from pipeline.study.study import Study
from tests.claims_worlds import CLAIMS
from tests.fake_records import EMULATED, a_cell, altered, made, make_study, make_table, pick, row_of


def cells(*strategies: str) -> list[dict[str, Any]]:
    return [a_cell(f"c{n}", one, f"Cell {n}") for n, one in enumerate(strategies)]


def test_bytes_of_a_step_are_those_of_one_profiled_run_not_of_all() -> None:
    told = []
    for repeats in (1, 3):
        table = make_table(
            cells=cells("ddp", "sharded"), repeats=3, profile={"steps": 4, "repeats": repeats}
        )
        metrics = table["metric"].astype(str).str.replace("predicted_sent_bytes", "sent_bytes")
        counted = pd.concat([table, table.assign(metric=metrics)[metrics != table["metric"]]])
        counted = counted.reset_index(drop=True)
        told.append((headline(Results(counted))["why"].partition(" Exposed ")[0], [
            made("layouts", counted)[0][name].max()
            for name in ("sent_bytes", "predicted_sent_bytes")
        ]))  # fmt: skip
    assert told[0] == told[1] and "the busiest rank sends" in told[0][0]


@pytest.mark.parametrize(
    ("label", "ran", "is_short"),
    [
        ("DPS + AMP O2", "torch amp O2, bf16", True),
        ("Horovod + Apex", "apex O1, fp16", True),
        ("Horovod + Apex", "torch amp O1, bf16", False),
        ("AMP, not Apex", "torch amp O2, bf16", False),
    ],
)
def test_what_ran_is_said_where_the_label_does_not(label: str, ran: str, is_short: bool) -> None:
    whole = f"{label} [{ran}], 1 Gbit/s"
    expected = f"{label}, 1 Gbit/s" if is_short else whole
    assert short_label({"label": whole, "precision_ran": ran}) == expected


LINE = EMULATED | {"links": EMULATED["links"][:1]}


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return make_table(repeats=2, cluster=EMULATED, profile={"steps": 4})


@pytest.fixture(scope="module")
def fallen() -> pd.DataFrame:
    """Every run was made on the loopback instead."""
    changes = {"cluster": EMULATED, "profile": {"steps": 4}}
    return make_table(repeats=2, fell_back=lambda spec: True, **changes)


def of(table: pd.DataFrame, metric: str, cell: str) -> pd.DataFrame:
    rows = pick(table, "cell", metric)
    return rows[rows["cell"] == cell].set_index("nodes")


def test_one_node_is_a_cell_of_no_link_and_the_base_over_each(table: pd.DataFrame) -> None:
    rates = pick(table, "cell", "tokens_per_second")
    alone = rates[rates["nodes"] == 1]
    assert alone["cell"].tolist() == ["single", "sps", "dps", "horovod", "dps-amp"]
    assert alone["link"].isna().all() and rates.loc[rates["nodes"] > 1, "link"].notna().all()
    assert Results(table).links == ["200 Mbit/s", "1 Gbit/s"]
    assert planned(Results(table)) == f"{2 * 26} timed and 26 profiled runs"
    for cell in ("dps-amp-slow", "dps-amp-fast"):
        assert set(of(table, "speedup", cell)["base"]) == {"single, 1 node"}
        assert of(table, "ideal_speedup", cell).loc[4, "value"] == 4
    assert set(of(table, "parity_verdict", "dps-amp-fast")["text"]) == {"equal"}


def test_a_claim_on_scaling_takes_the_one_node_too(table: pd.DataFrame) -> None:
    kept = [c for c in make_study()["cells"] if not c["name"].endswith("apex")]
    kept += [{"name": "h-amp", "label": "H", "strategy": "horovod", "precision": "amp_o1"}]
    study = make_study(repeats=2, cluster=EMULATED, cells=kept)
    made = make_table(repeats=2, cluster=EMULATED, cells=kept)
    found = judge(CLAIMS["sublinear-nodes"], Evidence(Study.of(study), Results(made)))
    assert found.effect is not None
    assert {"fake/dps/n1/r0", "fake/dps-fast/n2/r1"} <= set(found.runs)


def test_what_ran_on_the_loopback_is_one_cell_with_all_its_repeats(fallen: pd.DataFrame) -> None:
    check(fallen, "here")
    assert Results(fallen).links == ["loopback"]
    found = Results(fallen).cells.set_index("cell")
    assert found.loc["dps-loopback", "label"] == "Distributed Parameter Server (DDP), loopback"
    assert not found["label"].str.contains("bit/s").any()
    assert of(fallen, "num_ok", "dps-loopback")["value"].to_dict() == {1: 2, 2: 4, 4: 4}
    assert set(of(fallen, "speedup", "dps-loopback")["base"]) == {"single-loopback, 1 node"}
    seconds = of(fallen, "phase_mean_seconds:forward", "dps-loopback")
    assert seconds["n"].to_dict() == {1: 4, 2: 8, 4: 8}


@pytest.mark.parametrize("cluster", [EMULATED, LINE], ids=["two links", "one link"])
def test_runs_over_different_networks_are_never_compared(cluster: dict[str, Any]) -> None:
    table = make_table(repeats=2, cluster=cluster, fell_back=lambda spec: spec.repeat == 1)
    kinds = table.drop_duplicates("cell").set_index("cell")["network"]
    pairs = pick(table, "comparison", "speed_verdict")
    assert len(pairs) > 0 and {"emulated", "loopback"} == set(kinds.dropna())
    assert (pairs["cell"].map(kinds) == pairs["other"].map(kinds)).all()
    bases = pick(table, "cell", "speedup")
    assert (bases["base"].str.partition(",")[0].map(kinds) == bases["network"]).all()
    assert Results(table).links[-1] == "loopback"


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
def scaled() -> pd.DataFrame:
    return make_table(**CHANGES, cells=[SINGLE, WHOLE, DPS, RING])


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


def test_parity_under_weak_scaling_is_against_the_whole_batch_by_accumulation(scaled) -> None:
    for cell in ("dps", "ring"):
        assert row_of(scaled, "parity_verdict", cell, 4)["base"] == "single-16, 1 node"
        assert row_of(scaled, "parity_verdict", cell, 4)["text"] == "equal"
        assert row_of(scaled, "parity_verdict", cell, 1)["base"] == "single, 1 node"
    # No single device has the batch of two nodes: the first cell of that world.
    assert row_of(scaled, "parity_verdict", "ring", 2)["base"] == "dps, 2 nodes"
    assert row_of(scaled, "parity_verdict", "ring", 2)["text"] == "equal"
    assert "not the same global batch" in row_of(scaled, "parity_verdict", "dps", 2)["text"]


def test_a_weak_speedup_is_scaled_and_its_base_has_the_batch_of_a_device(scaled) -> None:
    assert row_of(scaled, "speedup", "dps", 4)["base"] == "single, 1 node"
    assert row_of(scaled, "ideal_speedup", "dps", 4)["value"] == 4.0
    weak = scaled[scaled["cell"] != "single-16"]
    assert Results(weak).speedup_name == "scaled speedup"
    assert "scaled" in Results(scaled).speedup_name
    assert "Scaled speedup" in made("scaling", weak)[1]
    assert "Scaled speedup" in made("summary", weak)[1]


def test_cells_of_unlike_batches_are_told_so() -> None:
    table = make_table()
    assert "Global batches" not in str(headline(Results(table)))
    table = altered(table, {"cell": "dps"}, global_batch=64)
    assert "Global batches differ (16 and 64 sequences)" in str(headline(Results(table)))
