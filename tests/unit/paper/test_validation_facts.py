"""What the paper says of the checks of `bench/emulation.py`."""

import json
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from pipeline.paper.emulation_facts import emulation_facts
from pipeline.paper.manuscript import render
from pipeline.paper.numbers import collect
from pipeline.paper.validation_facts import CHECKS, validation_facts
from pipeline.schemas import validate
from pipeline.study.study import Study
from tests.fake_bench import FORMER, RATIO, make_result
from tests.fake_records import EMULATED, make_study, make_table
from tests.unit.paper.papers import SOURCE, collected, make_paper

RESULT = make_result()


@pytest.fixture(scope="module")
def study() -> dict[str, Any]:
    return make_study(repeats=2, cluster=EMULATED, claims=["bai2022"])


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return make_table(repeats=2, cluster=EMULATED)


def found(table: pd.DataFrame, start: str, result: Any = RESULT) -> list[str]:
    rows = validation_facts(result, table)["rows"]
    return [row["found"] for row in rows if row["what"].startswith(start)]


def text_with(study: Any, table: pd.DataFrame, folder: Path, result: Any) -> str:
    numbers = collected(study, table) | {"emulation": emulation_facts(table, result)}
    return " ".join(render(SOURCE, numbers, folder / "tables").split())


def test_every_check_of_the_bench_is_shown_with_what_is_expected(table) -> None:
    rows = validation_facts(RESULT, table)["rows"]
    assert len(rows) == 3 + 2 + 2 + 1 + 2 + 2 + 1
    assert {row["expected"] for row in rows} == {expected for _, expected in CHECKS}


def test_a_cell_is_a_row_with_its_ratio_at_every_factor(table) -> None:
    one = "0.98 [0.95, 1.02]"
    assert found(table, "dps, 2 nodes: factor 2, 4 and 8, over 1") == [", ".join([one] * 3)]
    assert found(table, "dps, 8 nodes: factor 10, over 5") == [one]


def test_parts_shorter_than_their_cpu_seconds_are_counted(table) -> None:
    shown = "0 of 1,440 and 2 of 360; smallest ratio 1.001 and 0.900"
    assert found(table, "Steps and phases of a rank") == [shown]
    none = {"number": 0, "shorter": 0, "least": None}
    result = RESULT | {"cpu_seconds": RESULT["cpu_seconds"] | {"phases": none}}
    shown = "0 of 1,440 and 0 of 0; smallest ratio 1.001"
    assert found(table, "Steps and phases of a rank", result) == [shown]


def test_the_others_are_a_row_for_each_length_rate_and_ring(table) -> None:
    assert found(table, "CPU seconds of a step in all these") == ["1.03 and 1.03"]
    assert found(table, "Step time in all these, had it") == ["0.99 and 0.99"]
    (short,) = found(table, "Work of 0.5 ms, factor 1, 2, 4 and 8")
    assert short.count("1.02 [0.99, 1.25]") == 4
    assert len(found(table, "All-reduce over 1 Gbit/s, 2 and 4 nodes")) == 1
    assert len(found(table, "Longer step at half the rate over what a ring costs, 2 nodes")) == 1


def test_what_was_dropped_or_kept_although_disturbed_is_counted(table) -> None:
    facts = validation_facts(RESULT, table)
    assert (facts["dropped"], facts["disturbed"]) == (12, 2)


def test_without_the_bench_the_paper_says_that_nothing_was_validated(study, table, folder) -> None:
    assert validation_facts(None, table) == {"rows": [], "former": False}
    assert "was not validated on this machine" in text_with(study, table, folder, None)


def test_checks_of_an_earlier_version_are_named_and_not_shown(study, table, folder) -> None:
    validate(FORMER, "emulation", "emulation.json")
    assert validation_facts(FORMER, table) == {"rows": [], "former": True}
    text = text_with(study, table, folder, FORMER)
    assert "was validated by an earlier version of `make bench`" in text
    assert "was not validated" not in text


@pytest.mark.parametrize(
    ("change", "here"),
    [({}, True), ({"cpu_model": "Other CPU"}, False), ({"num_cores": 4}, False)],
    ids=["same", "processor", "cores"],
)
def test_a_validation_is_this_machine_s_where_processor_and_cores_are(
    change, here, study, table, folder
) -> None:
    machine = RESULT["hardware"] | change
    result = make_result(hardware=machine, git_commit="c0ffee" * 4)
    assert validation_facts(result, table)["here"] is here
    text = text_with(study, table, folder, result)
    other = f"on another machine**: {machine['num_cores']} cores of {machine['cpu_model']}, at"
    assert (f"{other} commit `c0ffeec0ffee`" in text) is not here


def test_a_validation_without_a_processor_is_of_another_machine(table) -> None:
    own = table.copy()
    own.loc[own["metric"] == "cpu_model", "text"] = ""
    result = make_result(hardware=RESULT["hardware"] | {"cpu_model": ""})
    facts = validation_facts(result, own)
    assert (facts["here"], facts["cpu"]) == (False, "an unknown processor")


@pytest.mark.parametrize("undilated", [True, False])
def test_the_text_says_against_what_eight_nodes_were_held(undilated, study, table, folder) -> None:
    eight = [dict(one) for one in RESULT["eight_nodes"]]
    if undilated:
        for one in eight:
            one["reference"] = {"factor": 1, "step_seconds": 0.04}
    text = text_with(study, table, folder, make_result(eight_nodes=eight))
    assert ("eight nodes do not fit it undilated" in text) is not undilated


def test_the_bench_is_shown_as_a_numbered_table(study, table, folder) -> None:
    text = render(SOURCE, collect(Study.of(study), table, (), None, RESULT), folder / "tables")
    (caption,) = [line for line in text.splitlines() if line.endswith("{#tbl:trust}")]
    assert "2 cores of Synthetic CPU, 2026-01-02" in caption
    order = re.findall(r"\{#tbl:(\w+)\}", text)
    place = f"at commit `unknown` (Table {order.index('trust') + 1})"
    assert place in " ".join(text.split())


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "is not JSON"),
        (json.dumps({**RESULT, "repeats": 0}), "$.repeats: 0 breaks minimum"),
        (json.dumps({**RESULT, "bandwidth": [RATIO]}), "'nodes' is a required property"),
        (json.dumps({}), "'measured_at' is a required property"),
    ],
)
def test_a_validation_that_is_none_is_one_line(content, said, folder, tmp_path, capsys) -> None:
    (tmp_path / "emulation.json").write_text(content)
    given = ["--validation", str(tmp_path / "emulation.json")]
    assert make_paper(folder, tmp_path / "out", *given) == 2
    (line,) = capsys.readouterr().err.splitlines()[-1:]
    assert line.startswith("error: ") and "emulation.json" in line and said in line


def test_the_bench_s_results_that_are_here_fit_their_schema() -> None:
    for path in Path("bench/results").glob("emulation.json"):
        validate(json.loads(path.read_text()), "emulation", path)
