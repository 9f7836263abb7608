import json
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from pipeline import figures, tables
from pipeline.claims.load import FOLDER, load_claims
from pipeline.errors import ClaimError
from pipeline.metrics.select import seconds_of_runs
from pipeline.paper.appendix import KICK_SECONDS, LICENCE, SHOWN_IN, appendix, duration, size
from pipeline.paper.manuscript import SOURCES, render
from pipeline.paper.numbers import collect
from pipeline.study.study import Study
from tests.fake_records import make_study, make_table
from tests.unit.paper.papers import collected
from tests.workflow.project import ROOT

SOURCE = (SOURCES / "manuscript.md").read_text(encoding="utf-8")
MANIFEST = {"num_tokens": 2_345_678, "num_documents": 812, "dtype": "uint16"}
MANIFEST |= {"text_sha256": "ab" * 32}
# The smallest appendix needs all other sections' tables; what is in them does not matter here.
ROWS = "| a |\n|---|\n| b |\n\n: What it is.\n"


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return make_table(repeats=2)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in tables.names():
        (tmp_path / f"{name}.md").write_text(ROWS)
    return tmp_path


def verdict(name: str, kind: str) -> dict[str, Any]:
    return {"id": name, "kind": kind, "verdict": "not testable here", "effect": None}


def text_of(numbers: dict[str, Any], folder: Path) -> str:
    text = render(SOURCE, numbers, folder).partition("# Artifact appendix")[2]
    assert text
    return " ".join(text.split())


def test_times_and_sizes_are_sums_over_the_records(table: pd.DataFrame) -> None:
    study = make_study(repeats=2)
    found = appendix(Study.of(study), table, [], MANIFEST)
    runs = seconds_of_runs(table)
    assert len(runs) == 32 and set(runs["seconds"]) == {30.0}
    assert (found["total"], found["elapsed"]) == ("16 minutes", "16 minutes")
    assert (found["longest_time"], found["experiments"]) == ("30 seconds", "16 experiments")
    assert found["tokens"]["size"] == "4.7 MB" and found["tokens"]["count"] == "2,345,678"
    sizes = table.loc[table["metric"] == "record_bytes", "value"]
    assert len(sizes) == 32 and found["records"] == size(sizes.sum())
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_the_longest_run_and_the_first_to_try_are_those_of_the_records(
    table: pd.DataFrame,
) -> None:
    changed = table.copy()
    ended = changed["metric"] == "ended_at"
    for run, minute in (("fake/dps/n4/r1", 40), ("fake/horovod/n2/r0", 50)):
        own = changed["run_id"] == run
        start = changed.loc[own & (changed["metric"] == "started_at"), "text"].iloc[0]
        later = pd.to_datetime(start) + pd.Timedelta(minutes=minute)
        changed.loc[own & ended, "text"] = later.isoformat()
    found = appendix(Study.of(make_study(repeats=2)), changed, [], None)
    assert (found["longest"], found["longest_time"]) == ("fake/horovod/n2/r0", "50 minutes")
    assert found["kick"]["target"] == "results/fake/runs/single/n1/r0/run.json"
    assert found["kick"]["fits"] and not found["kick"]["all_fit"]
    assert found["tokens"] == {}


def test_a_first_run_over_half_an_hour_is_said(table: pd.DataFrame, folder: Path) -> None:
    study = make_study(repeats=2)
    numbers = collected(study, table)
    said = "took 30 seconds here, set-up and tokens not counted, and so fits into half an hour"
    assert said in text_of(numbers, folder)
    slow = table.copy()
    started = slow["metric"] == "started_at"
    first = pd.to_datetime(slow.loc[started, "text"]) - pd.Timedelta(seconds=KICK_SECONDS)
    slow.loc[started, "text"] = [time.isoformat() for time in first]
    assert "**this is over half an hour**" in text_of(collect(Study.of(study), slow), folder)


def test_every_field_of_the_check_list_is_there(table: pd.DataFrame, folder: Path) -> None:
    text = text_of(collect(Study.of(make_study(repeats=2)), table, (), MANIFEST), folder)
    fields = re.findall(r"- \*\*([^*]+)\*\*: (\S+)", text.partition("## Check-list")[2])
    assert [name for name, _ in fields] == [
        "Algorithm", "Program", "Compilation", "Data set", "Run-time environment", "Hardware",
        "Execution", "Metrics", "Output", "Experiments", "Disk space", "Time to set up",
        "Time to execute", "Time to analyse", "Publicly available", "Code licence",
        "Data licence", "Archived",
    ]  # fmt: skip
    assert "4.7 MB of tokens, " in text and "812 documents" in text
    assert f"**Code licence**: {LICENCE}." in text


def test_the_licence_is_that_of_the_project() -> None:
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["license"] == LICENCE


def test_checkpoints_take_space_where_a_study_makes_them(table: pd.DataFrame) -> None:
    study = make_study(repeats=2)
    assert appendix(Study.of(study), table, [], None)["checkpoint"] == ""
    study["workload"] = study["workload"] | {"checkpoint_every": 10}
    # 1,071,616 parameters, each a weight and two moments of four bytes
    assert appendix(Study.of(study), table, [], None)["checkpoint"] == "13 MB"


def test_every_shipped_claim_is_led_to_a_figure_or_a_table() -> None:
    tests = [claim.test for path in FOLDER.glob("*/claims.yaml") for claim in load_claims(path)]
    assert len(tests) > 20
    for test in tests:
        assert any(SHOWN_IN[test.get("metric", test["kind"])])
    for figure, table in SHOWN_IN.values():
        assert figure is None or figure in figures.names()
        assert table is None or table in tables.names()


def test_the_map_names_each_claim_once_with_its_verdict(table: pd.DataFrame, folder: Path) -> None:
    study = make_study(repeats=2, claims=["bai2022"])
    [path] = FOLDER.glob("bai2022/claims.yaml")
    verdicts = [verdict(claim.id, claim.kind) for claim in load_claims(path)]
    numbers = collected(study, table)
    numbers["appendix"] = appendix(Study.of(study), table, verdicts, None)
    numbers["claims"] = {
        key: "" for key in ("publications", "total", "reproduced", "not_reproduced", "untested",
                            "undecided", "all_elsewhere", "some_elsewhere", "disagreements",
                            "compound", "reasons", "error_rate", "outcome")
    }  # fmt: skip
    text = text_of(numbers, folder).partition("shown here:")[2]
    for one in verdicts:
        assert len(re.findall(rf" {one['id']}[ ,.;]", text)) == 1
    assert re.search(
        r"- Figure \d+ and Table \d+: \*not testable here\* sps-slower-than-one,", text
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (duration(1), "1 second"),
        (duration(119), "119 seconds"),
        (duration(120), "2.0 minutes"),
        (duration(5400), "90 minutes"),
        (duration(36_000), "10 hours"),
        (size(1_500), "1.5 kB"),
        (size(2.34e6), "2.3 MB"),
        (size(1.2e9), "1.2 GB"),
    ],
)
def test_two_digits_are_enough_to_plan_with(text: str, expected: str) -> None:
    assert text == expected


def test_profiled_runs_have_a_time_of_their_own(folder: Path) -> None:
    study = make_study(repeats=2, profile={"steps": 8})
    table = make_table(repeats=2, profile={"steps": 8})
    found = appendix(Study.of(study), table, [], MANIFEST)
    assert (found["total"], found["profiled"]) == ("16 minutes", "8.0 minutes")
    assert found["elapsed"] == "24 minutes"
    assert (
        appendix(Study.of(make_study(repeats=2)), make_table(repeats=2), [], MANIFEST)["profiled"]
        == ""
    )
    text = text_of(collect(Study.of(study), table, (), MANIFEST), folder)
    assert "16 minutes of runs and 8.0 minutes of profiled runs, 24 minutes from" in text


def test_a_verdict_on_no_claim_of_the_study_is_refused(table: pd.DataFrame) -> None:
    study = Study.of(make_study(repeats=2, claims=["bai2022"]))
    with pytest.raises(ClaimError, match="claim 'nobody', which no claims of the study 'fake'"):
        appendix(study, table, [verdict("nobody", "ratio")], None)
