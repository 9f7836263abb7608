"""Sentences of the paper follow the runs: networks, clock, drift, profiles, claims."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from pipeline.metrics.build import build
from pipeline.paper import facts
from pipeline.study.study import Study
from pipeline.tables.write import made as made_table
from tests.fake_records import EMULATED, make_study, make_table, write_records
from tests.unit.paper.papers import make_results, text_of

ON_NODES: dict[str, Any] = {"repeats": 2, "cluster": EMULATED}
PROFILED: dict[str, Any] = {"repeats": 2, "profile": {"steps": 8}}


def test_what_the_emulated_nodes_got_is_told(folder: Path) -> None:
    table, study = make_table(**ON_NODES), make_study(**ON_NODES)
    text = text_of(study, table, folder)
    assert "(200 Mbit/s and 1 Gbit/s; packets of 9000 bytes)" in text and "at most 2 here" in text
    assert "emulated times are off was not measured here" in text and "real time" not in text
    stalled = table.index[table["metric"] == "stalled"]
    table.loc[stalled[:4], "value"] = 1.0
    told = made_table("environment", table)[0].set_index("item")["value"]
    assert told["Emulated: rate into a node [Mbit/s]"] == "190 to 950"
    assert told["Emulated: copies of a world"] == "1 to 2"
    assert told["Emulated: runs that stalled"] == f"4 of {len(stalled)}"


@pytest.mark.parametrize("older", [False, True])
def test_what_is_not_true_of_older_records_is_not_said_of_them(older: bool, folder: Path) -> None:
    table = make_table(**ON_NODES)
    if older:
        table = table[~table["metric"].str.startswith(("tcp_", "stalled"))]
    text = text_of(make_study(**ON_NODES), table, folder)
    said = ["Some runs were made by an older version" in text, "time-out is dilated too" in text]
    assert said == [older, not older]


REAL = {**make_study()["cluster"], "network": "real"}
LIMITS = ["Emulated nodes share one machine", "Nodes on the loopback are groups of processes",
          "Nodes were joined by a real network"]  # fmt: skip
NETWORKS: dict[str, tuple[dict[str, Any], Any, list[int]]] = {
    "emulated": ({"cluster": EMULATED}, None, [0]),
    "loopback": ({}, None, [1]),
    "real": ({"cluster": REAL}, None, [2]),
    "none": ({"cluster": EMULATED}, lambda spec: True, [1]),
    "mixed": ({"cluster": EMULATED}, lambda s: s.repeat == 0 and s.world.nodes > 1, [0, 1]),
}


@pytest.mark.parametrize("case", NETWORKS)
def test_the_limits_name_the_networks_that_the_runs_had(case: str, folder: Path) -> None:
    changes, fell_back, said = NETWORKS[case]
    study = make_study(repeats=2, **changes)
    made = make_table(repeats=2, fell_back=fell_back, **changes)
    limits = text_of(study, made, folder).split("# Limits")[1]
    assert [place for place, text in enumerate(LIMITS) if text in limits] == said
    reason = "could not have (the kernel lets no user make network namespaces)"
    assert (reason in limits) == (fell_back is not None)


def test_the_paper_says_by_which_clock_its_throughputs_are(folder: Path) -> None:
    table = make_table()
    assert "tokens of a step over the median step time. Speedup" in text_of(
        make_study(), table, folder
    )
    of_study = table[table["metric"] == "compares"].assign(metric="throughput_clock")
    text = text_of(make_study(), pd.concat([table, of_study]), folder)
    assert "over the mean time of steps that run freely" in text
    assert "has both clocks. Speedup" in text


def test_the_accuracy_of_this_machine_is_a_table(tmp_path: Path) -> None:
    cluster = EMULATED | {"links": EMULATED["links"][1:], "real_time": True}
    study = make_study(repeats=6, cluster=cluster, claims=["bai2022"])
    made = make_table(repeats=6, cluster=cluster)
    text = text_of(study, made, make_results(tmp_path, study, made))
    assert "in 36 runs between the others (Table" in text
    assert "Accuracy of the emulated times on this machine" in text
    assert "only what is outside of that is decided: emulated over real time" in text


def test_profiled_runs_that_all_failed_leave_no_figure(folder: Path, tmp_path: Path) -> None:
    study = make_study(**PROFILED)
    runs = write_records(
        tmp_path, study, lambda spec: ("oom", "no memory") if spec.profile else None
    )
    text = text_of(study, build(Study.of(study), runs), folder)
    split = text.partition("## Where the time of a step goes")[2].partition("## Step time")[0]
    assert "No profiled run finished" in split and "Figure" not in split
    assert "oom in 3 of 3 runs" in split


def test_why_claims_are_not_testable_is_counted_by_reason() -> None:
    untested: dict[str, Any] = {"verdict": "not testable here", "effect": None}
    whys = ("needs a GPU: x", "needs a GPU: y", "needs a GPU: x", "b", "b", "a: b")
    found = facts.by_reason([untested | {"why": why} for why in whys])
    assert [(why, len(own)) for why, own in found] == [("needs a GPU", 3), ("b", 2), ("a: b", 1)]
