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
def test_records_from_before_tcp_was_dilated_say_that_it_was_not(older: bool, folder: Path) -> None:
    table = make_table(**ON_NODES)
    if older:
        table = table[~table["metric"].str.startswith(("tcp_", "stalled"))]
    text = text_of(make_study(**ON_NODES), table, folder)
    said = ["are its timers of TCP" in text, "time-out is dilated too" in text]
    assert said == [older, not older]


REAL = {**make_study()["cluster"], "network": "real"}
NETWORKS = {
    "emulated": ({"cluster": EMULATED}, None, ["nodes of this study are emulated on one machine"]),
    "loopback": ({}, None, ["All nodes of this study are groups of processes on one machine"]),
    "real": ({"cluster": REAL}, None, ["Nodes were joined by a real network"]),
    "none": ({"cluster": EMULATED}, lambda spec: True,
             ["which could not be had here (the kernel lets no user make network namespaces)",
              "All nodes of this study are groups of processes on one machine"]),
    "mixed": ({"cluster": EMULATED}, lambda spec: spec.repeat == 0 and spec.world.nodes > 1,
              ["The nodes of some runs are emulated on one machine",
               "which 20 timed runs could not have (the kernel lets no user",
               "nodes of the runs on the loopback are groups of processes on one machine"]),
}  # fmt: skip
SAID = [said for _, _, sentences in NETWORKS.values() for said in sentences]


@pytest.mark.parametrize("case", NETWORKS)
def test_the_limits_name_the_networks_that_the_runs_had(case: str, folder: Path) -> None:
    changes, fell_back, sentences = NETWORKS[case]
    study = make_study(repeats=2, **changes)
    made = make_table(repeats=2, fell_back=fell_back, **changes)
    limits = text_of(study, made, folder).split("# Limits")[1]
    assert [said for said in SAID if said in limits] == [said for said in SAID if said in sentences]


def test_the_accuracy_of_this_machine_is_a_table(tmp_path: Path) -> None:
    cluster = EMULATED | {"links": EMULATED["links"][1:], "real_time": True}
    study = make_study(repeats=6, cluster=cluster, claims=["bai2022"])
    made = make_table(repeats=6, cluster=cluster)
    text = text_of(study, made, make_results(tmp_path, study, made))
    assert "in 36 runs between the others (Table" in text
    assert "Accuracy of the emulated times on this machine" in text
    assert "only what is outside of that is decided: emulated over real time" in text


def test_drift_and_a_slow_clock_are_said(study, table, folder) -> None:
    plain = text_of(study, table, folder)
    assert "of 25 runs with steps enough for that, 0 did." in plain
    assert "relative to their cells. It would be a drift from 5 % on" in plain
    assert "**Reading the clock takes" not in plain
    chosen = table.copy()
    drift = (chosen["metric"] == "drift") & (chosen["run_id"] == "fake/dps/n2/r0")
    order = chosen["metric"] == "order_drift"
    chosen.loc[drift | order, "text"] = "drift"
    chosen.loc[drift, "value"], chosen.loc[order, "value"] = 0.123, -0.07
    clock = (chosen["metric"] == "timer_overhead_share") & (chosen["run_id"] == "fake/dps/n2/r0")
    chosen.loc[clock, "value"] = 0.08
    text = text_of(study, chosen, folder)
    assert "of 25 runs with steps enough for that, 1 did (Table" in text
    assert "**From the first to the last third of all runs, step times changed by -7.0 %" in text
    assert "**Reading the clock takes over 5 % of a step in fake/dps/n2/r0.**" in text


def test_of_runs_too_short_for_the_test_no_drift_is_said_or_denied(study, table, folder) -> None:
    short = table.copy()
    rows = short["metric"].isin(["drift", "order_drift"])
    short.loc[rows, "text"], short.loc[rows, "value"] = "not tested: too short a series", pd.NA
    text = text_of(study, short, folder)
    assert [said for said in ("A run drifts", "steps enough", "a drift") if said in text] == []


def test_where_profiled_runs_trained_otherwise_it_is_said(table, folder) -> None:
    own = table.copy()
    row = (own["metric"] == "profile_deviation") & (own["cell"] == "dps") & (own["nodes"] == 2)
    own.loc[row, "value"] = 3e-7
    text = text_of(make_study(**PROFILED), own, folder)
    assert "differed from those of the timed runs by at most 3.0e-7 relative" in text
    assert "those of the timed runs to the bit" not in text
    plain = text_of(make_study(repeats=2), make_table(repeats=2), folder)
    assert "Where the time of a step goes" not in plain


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
