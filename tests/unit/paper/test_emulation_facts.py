import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from pipeline.paper.emulation_facts import CHECKS, emulation_facts
from tests.fake_records import EMULATED, make_study, make_table
from tests.unit.paper.papers import make_results, text_of

RATIO = {"value": 0.98, "low": 0.95, "high": 1.02, "n": 6, "how": "median"}
RESULT = {
    "measured_at": "2026-01-02T03:04:05+00:00",
    "hardware": {"cpu_model": "Synthetic CPU", "num_cores": 2},
    "repeats": 6,
    "num_parameters": 1_100_000,
    "dilated_over_undilated": [{"cell": "dps", "rate_mbits": 200.0, **RATIO}],
    "bandwidth": [
        {"nodes": n, "rate_mbits": 1000.0, **RATIO, "dropped": n, "disturbed": n // 4}
        for n in (2, 4)
    ],
    "eight_nodes": {"not_run": "needs 16 cores, this machine has 2"},
    "twice_as_slow": [{"nodes": 2, "foretold_seconds": 0.1, **RATIO}],
}


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return make_table(repeats=2, cluster=EMULATED)


def facts(table: pd.DataFrame, path: Path, result: Any = None) -> dict[str, Any]:
    if result is not None:
        path.write_text(json.dumps(result))
    return emulation_facts(table, path)


def test_what_the_nodes_got_is_the_least_of_all_runs(table, tmp_path) -> None:
    own = table.copy()
    row = (own["metric"] == "measured_mbits") & (own["link"] == "1 Gbit/s")
    own.loc[own.index[row][0], "value"] = 812.0
    found = facts(own, tmp_path / "none.json")
    assert found["any"] is True
    assert found["links"] == "200 Mbit/s and 1 Gbit/s"
    assert found["least_rates"] == "190 Mbit/s at 200 Mbit/s and 812 Mbit/s at 1 Gbit/s"
    assert (found["dilation"], found["copies"], found["least_share"]) == ("2", "2", "0.97")
    assert found["runs_short"] == 0


@pytest.mark.parametrize("horovod", [True, False])
def test_horovod_s_wait_is_stated_where_it_ran(horovod, tmp_path) -> None:
    study = make_study(repeats=1, cluster=EMULATED, claims=["bai2022"])
    if not horovod:
        study["cells"] = [cell for cell in study["cells"] if cell["strategy"] != "horovod"]
    made = make_table(repeats=1, cluster=EMULATED, cells=study["cells"])
    assert facts(made, tmp_path / "none.json")["horovod"] is horovod
    text = text_of(study, made, make_results(tmp_path, study, made))
    assert ("Horovod's own wait" in text) is horovod


def test_every_check_of_the_bench_is_a_row_with_what_is_expected(table, tmp_path) -> None:
    rows = facts(table, tmp_path / "v.json", RESULT)["validation"]["rows"]
    assert len(rows) == 5
    assert {row["expected"] for row in rows} == {expected for _, expected in CHECKS.values()}
    assert rows[0]["what"].endswith("dps, 200 Mbit/s")
    assert "0.98" in rows[0]["found"] and "0.95" in rows[0]["found"]
    assert rows[3]["found"] == "not run: needs 16 cores, this machine has 2"


def test_what_was_dropped_or_kept_although_disturbed_is_counted(table, tmp_path) -> None:
    found = facts(table, tmp_path / "v.json", RESULT)["validation"]
    assert (found["dropped"], found["disturbed"]) == (6, 1)


def test_without_the_bench_the_paper_says_that_nothing_was_validated(table, tmp_path) -> None:
    assert facts(table, tmp_path / "none.json")["validation"] == {"rows": []}


def test_nodes_that_could_not_be_emulated_say_why(tmp_path) -> None:
    assert facts(make_table(repeats=1), tmp_path / "none.json") == {
        "any": False,
        "not_emulated": "",
    }


def test_the_section_shows_links_and_dilation(table, tmp_path) -> None:
    study = make_study(repeats=2, cluster=EMULATED, claims=["bai2022"])
    text = text_of(study, table, make_results(tmp_path, study, table))
    assert "## Emulated nodes" in text
    assert "(200 Mbit/s and 1 Gbit/s)" in text
    assert "190 Mbit/s at 200 Mbit/s and 950 Mbit/s at 1 Gbit/s, headers left out" in text
