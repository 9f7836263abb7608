"""Adaptive repeats: stop when the interval is narrow, follow nothing that never finishes."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.__main__ import main
from pipeline.errors import RecordError, StudyError
from pipeline.metrics.adaptive import called_for, run_files
from pipeline.metrics.build import build
from pipeline.paper.numbers import collect as collect_numbers
from pipeline.records import RunRecord, write_record
from pipeline.study.expansion import expand
from pipeline.study.load import check_study
from pipeline.study.spec import RunSpec
from pipeline.study.study import Study
from tests.fake_records import make_record, make_study

CELLS = [
    {"name": name, "label": name, "strategy": "ddp", "precision": "fp32", "nodes": [1]}
    for name in ("calm", "wild")
]
ADAPTIVE = {"at_least": 6, "at_most": 9, "within": 0.02}


def study(**changes: Any) -> dict[str, Any]:
    return make_study(**{"cells": CELLS, "repeats": ADAPTIVE, **changes})


def write(folder: Path, chosen: Callable[[RunSpec], bool], **failed: tuple[str, str]) -> Path:
    """Records of the chosen runs: calm ones 0.1 % apart, wild ones 10 %."""
    for spec in [spec for spec in expand(Study.of(study())) if chosen(spec)]:
        record = make_record(spec, failed.get(spec.cell))
        apart = {"calm": 0.001, "wild": 0.1}[spec.cell] * (1 if spec.repeat % 2 else -1)
        steps = [replace(step, seconds=0.2 * (1 + apart)) for step in record.steps]
        target = folder / spec.cell / "n1" / f"r{spec.repeat}"
        write_record(target, RunRecord(record.run, steps))
    return folder


def counts(specs: list[RunSpec]) -> dict[str, int]:
    return {name: sum(s.cell == name for s in specs) for name in ("calm", "wild")}


def test_a_fixed_number_calls_for_all_and_reads_nothing(tmp_path: Path) -> None:
    fixed = study(repeats=3)
    assert called_for(Study.of(fixed), tmp_path / "nothing") == expand(Study.of(fixed))


def test_before_any_record_the_fewest_are_called_for(tmp_path: Path) -> None:
    assert counts(called_for(Study.of(study()), tmp_path)) == {"calm": 6, "wild": 6}


def test_a_wide_interval_calls_for_one_more_of_all_that_are_compared(tmp_path: Path) -> None:
    write(tmp_path, lambda spec: spec.repeat < 6)
    assert counts(called_for(Study.of(study()), tmp_path)) == {"calm": 7, "wild": 7}
    write(tmp_path, lambda spec: spec.cell == "wild" and spec.repeat < 8)
    assert counts(called_for(Study.of(study()), tmp_path)) == {"calm": 7, "wild": 7}
    write(tmp_path, lambda spec: spec.cell == "calm" and spec.repeat < 8)
    assert counts(called_for(Study.of(study()), tmp_path)) == {"calm": 9, "wild": 9}
    write(tmp_path, lambda spec: True)
    assert counts(called_for(Study.of(study()), tmp_path)) == {"calm": 9, "wild": 9}


def test_cells_of_another_node_count_are_repeated_too_as_speedups_compare_them(
    tmp_path: Path,
) -> None:
    write(tmp_path, lambda spec: spec.repeat < 6)
    two = study(cells=[CELLS[0] | {"nodes": [2]}, CELLS[1]])
    (tmp_path / "calm" / "n1").rename(tmp_path / "calm" / "n2")
    for path in (tmp_path / "calm" / "n2").glob("*"):
        spec = next(
            s for s in expand(Study.of(two)) if s.cell == "calm" and f"r{s.repeat}" == path.name
        )
        record = make_record(spec)
        steps = [replace(step, seconds=0.2) for step in record.steps]
        write_record(path, RunRecord(record.run, steps))
    assert counts(called_for(Study.of(two), tmp_path)) == {"calm": 7, "wild": 7}


def test_what_never_finishes_is_not_repeated(tmp_path: Path) -> None:
    write(tmp_path, lambda spec: spec.repeat < 6, wild=("oom", "out of memory"))
    assert counts(called_for(Study.of(study()), tmp_path)) == {"calm": 6, "wild": 6}


def test_the_table_wants_what_is_called_for_and_no_more(tmp_path: Path) -> None:
    write(tmp_path, lambda spec: spec.repeat < 6)
    with pytest.raises(RecordError, match=r"calm/n1/r6/run\.json does not exist"):
        build(Study.of(study()), tmp_path)
    write(tmp_path, lambda spec: True)
    table = build(Study.of(study()), tmp_path)
    found = table[(table["level"] == "cell") & (table["metric"] == "num_runs")]
    assert dict(found[["cell", "value"]].to_numpy()) == {"calm": 9, "wild": 9}
    numbers = collect_numbers(Study.of(study()), table)["study"]
    assert numbers["repeats"].startswith("6 to 9 repeats (until the interval")
    assert "2 % of it" in numbers["repeats"] and numbers["adaptive"] == "92 to 96 %"


def test_the_stage_writes_the_runs_of_one_round(tmp_path: Path) -> None:
    write(tmp_path / "runs", lambda spec: spec.repeat < 6)
    (tmp_path / "study.json").write_text(json.dumps(study()))
    args = ["repeats", "--study", str(tmp_path / "study.json"), "--runs", str(tmp_path / "runs")]
    assert main([*args, "--repeat", "6", "--out", str(tmp_path / "6.json")]) == 0
    assert json.loads((tmp_path / "6.json").read_text()) == ["fake/calm/n1/r6", "fake/wild/n1/r6"]


RESULTS = "results/fake"


@dataclass
class Rounds:
    """Stands for Snakemake's checkpoint: the file of each round, or an error before it ran."""

    folder: Path
    called: dict[int, list[str]]

    def get(self, repeat: int) -> Any:
        path = self.folder / f"{repeat}.json"
        path.write_text(json.dumps(self.called[repeat]))
        return type("Round", (), {"output": [str(path)]})


def test_the_workflow_follows_the_rounds_until_one_is_empty(tmp_path: Path) -> None:
    rounds = Rounds(tmp_path, {6: ["fake/wild/n1/r6"], 7: []})
    assert len(run_files(Study.of(study()), RESULTS, 6, "run.json", rounds.get)) == 12
    files = run_files(Study.of(study()), RESULTS, None, "run.json", rounds.get)
    assert files[-1] == "results/fake/runs/wild/n1/r6/run.json" and len(files) == 13
    with pytest.raises(KeyError):
        run_files(Study.of(study()), RESULTS, None, "run.json", Rounds(tmp_path, {}).get)
    fixed = study(repeats=2)
    assert len(run_files(Study.of(fixed), RESULTS, None, "run.json", Rounds(tmp_path, {}).get)) == 4


@pytest.mark.parametrize(
    ("repeats", "message"),
    [
        ({"at_least": 3, "at_most": 9, "within": 0.1}, "repeats"),
        ({"at_least": 6, "at_most": 9}, "repeats"),
        ({"at_least": 9, "at_most": 7, "within": 0.1}, "at_most 7 is under repeats.at_least 9"),
        (0, "repeats"),
    ],
)
def test_impossible_repeats_are_refused(repeats: object, message: str) -> None:
    with pytest.raises(StudyError, match=message):
        check_study(study(repeats=repeats), "study.yaml")
    check_study(study(), "study.yaml")
