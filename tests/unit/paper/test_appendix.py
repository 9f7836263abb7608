import json

import pandas as pd
import pytest
import yaml

from pipeline.metrics.select import seconds_of_runs
from pipeline.paper.appendix import LICENCE, appendix, duration, size
from pipeline.study.study import Study
from tests.fake_records import make_study, make_table
from tests.workflow.project import ROOT

MANIFEST = {"num_tokens": 2_345_678, "num_documents": 812, "dtype": "uint16"}
MANIFEST |= {"text_sha256": "ab" * 32}


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return make_table(repeats=2)


def test_times_and_sizes_are_sums_over_the_records(table: pd.DataFrame) -> None:
    study = make_study(repeats=2)
    found = appendix(Study.of(study), table, MANIFEST)
    runs = seconds_of_runs(table)
    assert len(runs) == 32 and set(runs["seconds"]) == {30.0}
    assert (found["total"], found["elapsed"]) == ("16 minutes", "16 minutes")
    assert found["tokens"]["size"] == "4.7 MB" and found["tokens"]["count"] == "2,345,678"
    sizes = table.loc[table["metric"] == "record_bytes", "value"]
    assert len(sizes) == 32 and found["records"] == size(sizes.sum())
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_the_first_run_to_try_is_the_one_that_ended_soonest(table: pd.DataFrame) -> None:
    changed = table.copy()
    ended = changed["metric"] == "ended_at"
    for run, minute in (("fake/dps/n4/r1", 40), ("fake/horovod/n2/r0", 50)):
        own = changed["run_id"] == run
        start = changed.loc[own & (changed["metric"] == "started_at"), "text"].iloc[0]
        later = pd.to_datetime(start) + pd.Timedelta(minutes=minute)
        changed.loc[own & ended, "text"] = later.isoformat()
    found = appendix(Study.of(make_study(repeats=2)), changed, None)
    assert found["kick"]["target"] == "results/fake/runs/single/n1/r0/run.json"
    assert found["kick"]["fits"]
    assert found["tokens"] == {}


def test_the_licence_is_that_of_the_project() -> None:
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["license"] == LICENCE


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


def test_profiled_runs_have_a_time_of_their_own(table: pd.DataFrame) -> None:
    study = Study.of(make_study(repeats=2, profile={"steps": 8}))
    found = appendix(study, make_table(repeats=2, profile={"steps": 8}), MANIFEST)
    assert (found["total"], found["profiled"]) == ("16 minutes", "8.0 minutes")
    assert found["elapsed"] == "24 minutes"
    assert appendix(study, table, MANIFEST)["profiled"] == ""
