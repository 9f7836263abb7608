"""Order of execution, drift and the clock, from records to rows."""

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pipeline.__main__ import main
from pipeline.metrics.build import build, longest_rise
from pipeline.records import Step
from pipeline.study.study import Study
from tests.fake_records import a_cell, edit_record, edit_steps, make_study, write_records

CELLS = [a_cell(name, nodes=[1, 2]) for name in ("a", "b")]


def study() -> dict[str, Any]:
    return make_study(cells=CELLS, repeats=4)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return write_records(tmp_path / "runs", study())


def slowed(factor: Callable[[Step], float]) -> Callable[[Step], Step]:
    return lambda step: replace(step, seconds=step.seconds * factor(step))


def about(table: pd.DataFrame, metric: str) -> pd.Series:
    return table[(table["level"] == "study") & (table["metric"] == metric)].iloc[0]


def report(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(study()))
    args = ["metrics", "--study", str(tmp_path / "study.yaml"), "--runs", str(runs)]
    assert main([*args, "--out", str(tmp_path / "m.parquet")]) == 0
    return capsys.readouterr().err


def test_a_run_that_was_repeated_later_is_counted_out(runs: Path) -> None:
    later = {"started_at": "2026-01-03T00:00:00+00:00", "ended_at": "2026-01-03T00:00:30+00:00"}
    edit_record(runs / "a" / "n1" / "r0", lambda run: run.update(later))
    kept = about(build(Study.of(study()), runs), "order_kept")
    assert (kept["value"], kept["n"]) == (15, 16)
    assert kept["text"].endswith("15 of 16 runs were executed in this order")


@given(st.permutations(range(7)))
def test_the_longest_rise_is_the_longest(places: list[int]) -> None:
    rising = [
        size
        for size in range(1, 8)
        for chosen in combinations(places, size)
        if list(chosen) == sorted(chosen)
    ]
    assert longest_rise(places) == max(rising)


def test_drift_within_a_run_is_reported(runs, tmp_path, capsys) -> None:
    assert "drifted" not in report(runs, tmp_path, capsys)
    edit_steps(runs / "b" / "n2" / "r1", slowed(lambda step: 1 + 0.01 * step.step))
    said = report(runs, tmp_path, capsys)
    assert "fake/b/n2/r1: step times drifted by +1" in said
    assert said.count("drifted") == 1


def test_drift_over_the_order_of_runs_is_reported(runs, tmp_path, capsys) -> None:
    assert about(build(Study.of(study()), runs), "order_drift")["text"] == "none"
    for place in runs.glob("*/n*/r*"):
        factor = 1 + 0.1 * int(place.name[1:])
        edit_steps(place, slowed(lambda step, factor=factor: factor))  # type: ignore[misc]
    found = about(build(Study.of(study()), runs), "order_drift")
    assert found["text"] == "drift" and found["value"] > 0.1
    assert "the runs in their order: step times drifted by +" in report(runs, tmp_path, capsys)
