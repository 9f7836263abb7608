"""Cells over several links: one node is measured once, and a loopback is no link."""

from typing import Any

import pandas as pd
import pytest

from pipeline.claims.judge import judge
from pipeline.claims.load import FOLDER, load_claims
from pipeline.claims.worlds import Evidence
from pipeline.metrics.results import Results
from pipeline.metrics.table import check
from pipeline.study.study import Study
from tests.fake_records import EMULATED, make_study, make_table, pick

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


def test_one_node_is_a_cell_of_the_arm_and_over_no_link(table: pd.DataFrame) -> None:
    rates = pick(table, "cell", "tokens_per_second")
    alone = rates[rates["nodes"] == 1]
    assert alone["cell"].tolist() == ["single", "sps", "dps", "horovod", "dps-amp"]
    assert alone["link"].isna().all() and rates.loc[rates["nodes"] > 1, "link"].notna().all()
    assert Results(table).links == ["200 Mbit/s", "1 Gbit/s"]
    assert Results(table).planned_text == f"{2 * 26} timed and 26 profiled runs"


def test_both_links_take_their_base_from_the_one_node(table: pd.DataFrame) -> None:
    for cell in ("dps-amp-slow", "dps-amp-fast"):
        assert set(of(table, "speedup", cell)["base"]) == {"single, 1 node"}
        assert of(table, "ideal_speedup", cell).loc[4, "value"] == 4
    assert set(of(table, "parity_verdict", "dps-amp-fast")["text"]) == {"equal"}


def test_a_claim_on_scaling_takes_the_one_node_too(table: pd.DataFrame) -> None:
    kept = [c for c in make_study()["cells"] if not c["name"].endswith("apex")]
    kept += [{"name": "h-amp", "label": "H", "strategy": "horovod", "precision": "amp_o1"}]
    study = make_study(repeats=2, cluster=EMULATED, cells=kept)
    made = make_table(repeats=2, cluster=EMULATED, cells=kept)
    claims = {claim.id: claim for claim in load_claims(FOLDER / "bai2022/claims.yaml")}
    found = judge(claims["sublinear-nodes"], Evidence(Study.of(study), Results(made)))
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
