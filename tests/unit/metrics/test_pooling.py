"""Runs that were made under different circumstances are never pooled in silence."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.metrics.build import build
from pipeline.metrics.facts import circumstances, mixed
from pipeline.metrics.results import Results
from pipeline.study.study import Study
from tests.fake_records import (
    EMULATED,
    edit_record,
    make_record,
    make_study,
    pick,
    rank_environment,
    spec_of,
    write_records,
)


def run_on(cluster: dict[str, Any] | None = None) -> dict[str, Any]:
    """The content of run.json of a run on two nodes."""
    spec = spec_of("dps-slow", cluster=cluster) if cluster else spec_of()
    run: dict[str, Any] = json.loads(json.dumps(make_record(spec).run))
    return run


def changed(*path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(run: dict[str, Any]) -> None:
        for part in path[:-1]:
            run = run[part]
        run[path[-1]] = value

    return change


def on(**facts: Any) -> Callable[[dict[str, Any]], None]:
    def change(run: dict[str, Any]) -> None:
        run["ranks"][1]["environment"] = rank_environment() | facts

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (changed("execution", "network", value="loopback"), "network emulated and loopback"),
        (changed("execution", "emulation", "mtu", value=1500), "MTU 1500 and 9000"),
        (on(cpu_model="Other"), "processor Other and Synthetic CPU"),
        (changed("hardware", "gpus", value=["V100", "V100"]), "GPU V100 and none"),
        (changed("provenance", "git_commit", value="f" * 40), f"commit {'0' * 12} and {'f' * 12}"),
        (changed("provenance", "git_dirty", value=True), f"{'0' * 12} and {'0' * 12} with changes"),
    ],
)
def test_what_differs_is_named(change: Callable[[dict[str, Any]], None], said: str) -> None:
    run, other = run_on(EMULATED), run_on(EMULATED)
    assert mixed([run, other]) == ""
    change(other)
    assert said in mixed([run, run, other])


def test_what_an_older_record_does_not_tell_makes_no_difference() -> None:
    run, other = run_on(), run_on()
    on(kernel="Linux 7")(other)
    assert "kernel" in circumstances(other) and mixed([run, other]) == ""


def test_a_mixed_cell_is_marked(tmp_path: Path) -> None:
    study = make_study(repeats=2)
    write_records(tmp_path, study)
    edit_record(tmp_path / "dps/n2/r1", changed("versions", "torch", value="2.12.0"))
    table = build(Study.of(study), tmp_path)
    rows = pick(table, "cell", "mixed")
    marked = rows[rows["value"] == 1]
    assert marked[["cell", "nodes"]].to_numpy().tolist() == [["dps", 2]]
    [note] = Results(table).mixed
    assert note.endswith("at 2 nodes: the runs differ in torch 2.12.0 and 2.13.0")
