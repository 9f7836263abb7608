import json
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from pipeline.paper.emulation_facts import CHECKS, emulation_facts
from pipeline.paper.manuscript import render
from pipeline.paper.numbers import collect
from pipeline.schemas import validate
from tests.fake_records import EMULATED, make_study, make_table
from tests.unit.paper.papers import SOURCE, make_paper, make_results, text_of

RATIO = {"value": 0.98, "low": 0.95, "high": 1.02, "n": 6, "how": "median"}
RESULT: dict[str, Any] = {
    "measured_at": "2026-01-02T03:04:05+00:00",
    "hardware": {"cpu_model": "Synthetic CPU", "num_cores": 2},
    "repeats": 6,
    "num_parameters": 1_100_000,
    "git_commit": None,
    "dilated_over_undilated": [{"cell": "dps", "rate_mbits": 200.0, **RATIO}],
    "bandwidth": [
        {"nodes": n, "rate_mbits": 1000.0, **RATIO, "dropped": n, "disturbed": n // 4}
        for n in (2, 4)
    ],
    "eight_nodes": {"not_run": "needs 16 cores, this machine has 2"},
    "twice_as_slow": [{"nodes": 2, "foretold_seconds": 0.1, **RATIO}],
}


@pytest.fixture(scope="module")
def study() -> dict[str, Any]:
    return make_study(repeats=2, cluster=EMULATED, claims=["bai2022"])


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return make_table(repeats=2, cluster=EMULATED)


def test_what_the_nodes_got_is_the_least_of_all_runs(table) -> None:
    own = table.copy()
    row = (own["metric"] == "measured_mbits") & (own["link"] == "1 Gbit/s")
    own.loc[own.index[row][0], "value"] = 812.0
    found = emulation_facts(own)
    assert found["any"] is True
    assert found["links"] == "200 Mbit/s and 1 Gbit/s"
    assert found["least_rates"] == "190 Mbit/s at 200 Mbit/s and 812 Mbit/s at 1 Gbit/s"
    assert found["mtu"] == "9000"
    assert (found["dilation"], found["copies"], found["least_share"]) == ("2", "2", "0.97")
    assert found["runs_short"] == 0


def test_runs_that_stalled_are_counted_and_named(table, tmp_path) -> None:
    study = make_study(repeats=2, cluster=EMULATED, claims=["bai2022"])
    root = make_results(tmp_path, study, table)
    assert emulation_facts(table)["stalled"]["runs"] == 0
    assert "runs did TCP time out, and no step took" in text_of(study, table, root)
    own = table.copy()
    rows = own.index[own["metric"] == "stalled"]
    own.loc[rows[:4], "value"] = 1.0
    found = emulation_facts(own)["stalled"]
    assert (found["runs"], found["of"]) == (4, len(rows))
    assert found["which"].startswith("fake/") and found["which"].endswith(" and 1 more")
    said = f"Marked as stalled: 4 of {len(rows)} runs, in which TCP timed out"
    assert said in text_of(study, own, root)


def test_records_from_before_tcp_was_dilated_say_that_it_was_not(table, tmp_path) -> None:
    study = make_study(repeats=2, cluster=EMULATED, claims=["bai2022"])
    root = make_results(tmp_path, study, table)
    assert emulation_facts(table)["tcp"] == {
        "control": "reno",
        "time_out": "200 ms",
        "keeps_window": True,
    }
    text, before = text_of(study, table, root), "nor are its timers of TCP"
    assert "time-out is dilated too (200 ms in time of the nodes)" in text and before not in text
    own = table[~table["metric"].str.startswith(("tcp_", "stalled"))]
    assert emulation_facts(own)["tcp"] == emulation_facts(own)["stalled"] == {}
    text = text_of(study, own, root)
    assert before in text
    assert not any(said in text for said in ("is dilated too", "Marked as", "did TCP time out"))


@pytest.mark.parametrize("horovod", [True, False])
def test_horovod_s_wait_is_stated_where_it_ran(horovod, tmp_path) -> None:
    study = make_study(repeats=1, cluster=EMULATED, claims=["bai2022"])
    if not horovod:
        study["cells"] = [cell for cell in study["cells"] if cell["strategy"] != "horovod"]
    made = make_table(repeats=1, cluster=EMULATED, cells=study["cells"])
    assert emulation_facts(made)["horovod"] is horovod
    text = text_of(study, made, make_results(tmp_path, study, made))
    assert ("Horovod's own wait" in text) is horovod


def test_every_check_of_the_bench_is_a_row_with_what_is_expected(table) -> None:
    rows = emulation_facts(table, RESULT)["validation"]["rows"]
    assert len(rows) == 5
    assert {row["expected"] for row in rows} == {expected for _, expected in CHECKS.values()}
    assert rows[0]["what"].endswith("dps, 200 Mbit/s")
    assert "0.98" in rows[0]["found"] and "0.95" in rows[0]["found"]
    assert rows[3]["found"] == "not run: needs 16 cores, this machine has 2"


def test_what_was_dropped_or_kept_although_disturbed_is_counted(table) -> None:
    found = emulation_facts(table, RESULT)["validation"]
    assert (found["dropped"], found["disturbed"]) == (6, 1)


def test_without_the_bench_the_paper_says_that_nothing_was_validated(table) -> None:
    assert emulation_facts(table)["validation"] == {"rows": []}


@pytest.mark.parametrize(
    ("change", "here"),
    [({}, True), ({"cpu_model": "Other CPU"}, False), ({"num_cores": 4}, False)],
    ids=["same", "processor", "cores"],
)
def test_a_validation_is_this_machine_s_where_processor_and_cores_are(
    change, here, table, folder
) -> None:
    result = RESULT | {"hardware": RESULT["hardware"] | change, "git_commit": "c0ffee" * 4}
    study = make_study(repeats=2, cluster=EMULATED, claims=["bai2022"])
    numbers = collect(study, table, (), None, result)
    assert numbers["emulation"]["validation"]["here"] is here
    text = " ".join(render(SOURCE, numbers, folder / "tables").split())
    machine = result["hardware"]
    other = f"on another machine**: {machine['num_cores']} cores of {machine['cpu_model']}, at"
    assert (f"{other} commit `c0ffeec0ffee`" in text) is not here


def test_a_validation_without_a_processor_is_of_another_machine(table) -> None:
    own = table.copy()
    own.loc[own["metric"] == "cpu_model", "text"] = ""
    hardware = RESULT["hardware"] | {"cpu_model": ""}
    found = emulation_facts(own, RESULT | {"hardware": hardware})["validation"]
    assert (found["here"], found["cpu"]) == (False, "an unknown processor")


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


def test_the_section_shows_links_and_dilation(table, tmp_path) -> None:
    study = make_study(repeats=2, cluster=EMULATED, claims=["bai2022"])
    text = text_of(study, table, make_results(tmp_path, study, table))
    assert "## Emulated nodes" in text
    assert "(200 Mbit/s and 1 Gbit/s; packets of 9000 bytes)" in text
    assert "was not validated" in text
    assert "190 Mbit/s at 200 Mbit/s and 950 Mbit/s at 1 Gbit/s, headers left out" in text


def test_the_bench_is_shown_as_a_numbered_table(table, tmp_path) -> None:
    study = make_study(repeats=2, cluster=EMULATED, claims=["bai2022"])
    root = make_results(tmp_path, study, table)
    text = render(SOURCE, collect(study, table, (), None, RESULT), root / "tables")
    (caption,) = [line for line in text.splitlines() if line.endswith("{#tbl:trust}")]
    assert "2 cores of Synthetic CPU, 2026-01-02" in caption
    order = re.findall(r"\{#tbl:(\w+)\}", text)
    place = f"at commit `unknown` (Table {order.index('trust') + 1})"
    assert place in " ".join(text.split())


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "cannot be read"),
        (json.dumps({**RESULT, "repeats": 0}), "$.repeats: 0 breaks minimum"),
        (json.dumps({**RESULT, "bandwidth": [RATIO]}), "'nodes' is a required property"),
    ],
)
def test_a_validation_that_is_none_is_one_line(content, said, table, tmp_path, capsys) -> None:
    study = make_study(repeats=2, cluster=EMULATED, claims=["bai2022"])
    root = make_results(tmp_path, study, table)
    (tmp_path / "emulation.json").write_text(content)
    given = ["--validation", str(tmp_path / "emulation.json")]
    assert make_paper(root, tmp_path / "out", *given) == 2
    (line,) = capsys.readouterr().err.splitlines()[-1:]
    assert line.startswith("error: ") and "emulation.json" in line and said in line


def test_the_bench_s_results_that_are_here_fit_their_schema() -> None:
    path = Path("bench/results/emulation.json")
    validate(json.loads(path.read_text()), "emulation", path)
