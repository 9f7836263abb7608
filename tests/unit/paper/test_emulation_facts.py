from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from pipeline.paper.emulation_facts import emulation_facts
from pipeline.tables.write import made as made_table
from tests.fake_records import EMULATED, make_study, make_table
from tests.unit.paper.papers import make_results, text_of


@pytest.fixture(scope="module")
def study() -> dict[str, Any]:
    return make_study(repeats=2, cluster=EMULATED, claims=["bai2022"])


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return make_table(repeats=2, cluster=EMULATED)


def test_what_the_nodes_got_is_told(table) -> None:
    found = emulation_facts(table)
    assert found["any"] is True
    assert found["links"] == "200 Mbit/s and 1 Gbit/s"
    assert found["mtu"] == "9000"
    assert found["dilation"] == "2"
    told = made_table("environment", table)[0].set_index("item")["value"]
    assert told["Emulated: rate into a node [Mbit/s]"] == "190 to 950"
    assert told["Emulated: copies of a world"] == "1 to 2"


def test_runs_that_stalled_are_counted(table) -> None:
    own = table.copy()
    rows = own.index[own["metric"] == "stalled"]
    own.loc[rows[:4], "value"] = 1.0
    told = made_table("environment", own)[0].set_index("item")["value"]
    assert told["Emulated: runs that stalled"] == f"4 of {len(rows)}"


def test_records_from_before_tcp_was_dilated_say_that_it_was_not(study, table, folder) -> None:
    assert emulation_facts(table)["tcp"] is True
    text, before = text_of(study, table, folder), "nor are its timers of TCP"
    assert "time-out is dilated too" in text and before not in text
    own = table[~table["metric"].str.startswith(("tcp_", "stalled"))]
    assert emulation_facts(own)["tcp"] is False
    text = text_of(study, own, folder)
    assert before in text
    assert "is dilated too" not in text


def test_horovod_s_wait_is_stated_where_it_ran(study, table, folder, tmp_path) -> None:
    assert emulation_facts(table)["horovod"] is True
    assert "Horovod's own wait" in text_of(study, table, folder)
    cells = [cell for cell in study["cells"] if cell["strategy"] != "horovod"]
    without = make_table(repeats=1, cluster=EMULATED, cells=cells)
    assert emulation_facts(without)["horovod"] is False
    other = study | {"repeats": 1, "cells": cells}
    text = text_of(other, without, make_results(tmp_path, other, without))
    assert "Horovod's own wait" not in text


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
    study = make_study(repeats=2, claims=["bai2022"], **changes)
    made = make_table(repeats=2, fell_back=fell_back, **changes)
    limits = text_of(study, made, folder).split("# Limits")[1]
    assert [said for said in SAID if said in limits] == [said for said in SAID if said in sentences]


def test_the_section_shows_links_and_dilation(study, table, folder) -> None:
    text = text_of(study, table, folder)
    assert "## Emulated nodes" in text
    assert "(200 Mbit/s and 1 Gbit/s; packets of 9000 bytes)" in text
    assert "emulated times are off was not measured here" in text and "real time" not in text


def test_the_accuracy_of_this_machine_is_a_table(tmp_path: Path) -> None:
    cluster = EMULATED | {"links": EMULATED["links"][1:], "real_time": True}
    study = make_study(repeats=6, cluster=cluster, claims=["bai2022"])
    made = make_table(repeats=6, cluster=cluster)
    text = text_of(study, made, make_results(tmp_path, study, made))
    assert "in 36 runs between the others (Table" in text
    assert "Accuracy of the emulated times on this machine" in text
    assert (
        "either way, and only what is outside of that is decided: emulated over real time" in text
    )
