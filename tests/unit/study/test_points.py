"""A study of points: it has no runs, and what needs runs says so in one line."""

import json
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from pipeline.__main__ import main
from pipeline.errors import StudyError
from pipeline.study.load import check_points, find_study, load_points, shipped_studies
from tests.fake_records import make_study

GOOD = {"study": "mine", "title": "Mine", "points": "published", "date": "2026-11-27"}


def test_the_shipped_one_is_found_by_its_name_and_is_none_of_those_with_runs() -> None:
    study = load_points(find_study("planner"))
    assert study is not None and study.name == "planner"
    assert "planner" not in shipped_studies()
    assert load_points(find_study("smoke")) is None
    with pytest.raises(StudyError, match=r"one of planner$"):
        find_study("plannr")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cells": []}, "unknown keys 'cells'"),
        ({"date": "2026-02-30"}, "date '2026-02-30' is none"),
        ({"title": " "}, "is blank"),
        ({"study": "../x"}, r"\$.study"),
    ],
)
def test_a_wrong_one_is_refused_in_one_line(change: dict[str, Any], message: str) -> None:
    assert check_points(GOOD, "x").day == date(2026, 11, 27)
    with pytest.raises(StudyError, match=message) as error:
        check_points(GOOD | change, "x")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "command",
    ["plan", "watch", "archive", "doctor", "commands", "allocate",
     "claims --metrics m.parquet --out v.json", "metrics --runs . --out m.parquet",
     "calibrate --out c.json", "predict --device a100-80 --link 100gbit"],
)  # fmt: skip
def test_what_needs_runs_refuses_it(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    name, *words = command.split()
    assert main([name, "--study", "planner", *words]) == 2
    errors = capsys.readouterr().err
    assert "a study of points has no runs, which this needs; `make paper` makes" in errors
    assert errors.startswith("error: ") and errors.count("\n") == 1


def test_a_study_with_cells_has_no_such_paper(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "study.json").write_text(json.dumps(make_study()))
    words = ["--generated", str(tmp_path / "g"), "--out", str(tmp_path / "o")]
    assert main(["points", "--study", str(tmp_path / "study.json"), *words]) == 2
    assert "has no points but cells" in capsys.readouterr().err
