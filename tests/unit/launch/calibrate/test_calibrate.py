"""Calibration of this machine: what it starts, and that its file predicts."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.__main__ import main
from pipeline.emulation.nodes import why_not
from pipeline.errors import StudyError
from pipeline.launch import calibrate
from pipeline.launch.calibrate import collectives, measured, nodes, operators
from pipeline.launch.calibrate.operators import STRETCHES
from pipeline.planner.operators import Operator
from pipeline.resolved import runs_of
from pipeline.strategies.horovod.plan import Horovod, why_unusable
from pipeline.study.load import load_study
from tests.fake_records import a_cell

ROOT = Path(__file__).parents[4]
INSTALLED = why_unusable() is None
TRAINS = (
    "pipeline.models.build", "pipeline.models.gpt2.model", "pipeline.parallel.step",
    "pipeline.training.loop", "pipeline.strategies.single.step", "pipeline.training.optimiser",
)  # fmt: skip
"""Modules without which no model exists and no step is made."""

SPY = """
import atexit, json, os, runpy, sys
from pathlib import Path
out = Path(sys.argv.pop(1))
real = os._exit
def leave(code):
    (out / f"{os.getpid()}.json").write_text(json.dumps(sorted(sys.modules)))
    real(code)
os._exit = leave
sys.argv[0] = "pipeline"
from pipeline.launch.calibrate import measured
measured.__defaults__ = (1.0,)  # of measuring, in place of 24 s
from pipeline.__main__ import main
code = main(sys.argv[1:])
(out / "parent.json").write_text(json.dumps(sorted(sys.modules)))
sys.exit(code)
"""


@pytest.fixture(scope="module")
def study(tmp_path_factory) -> Path:
    """A study on the loopback, with a model that takes no time."""
    path = tmp_path_factory.mktemp("study") / "tiny.yaml"
    base = load_study(ROOT / "workflow/config/smoke/study.yaml").to_dict()
    cluster = {"device": "cpu", "ranks_per_node": 2, "nodes": [1], "backend": "gloo",
               "network": "loopback", "threads_per_rank": 1}  # fmt: skip
    model = base["model"] | {"num_layers": 1, "width": 8, "num_heads": 1, "context": 8}
    cells = [
        a_cell("ddp"),
        a_cell("zero3", "sharded", options={"ranks": 2}),
        a_cell("horovod", "horovod"),
    ]
    whole = {**base, "study": "tiny", "cluster": cluster, "model": model, "cells": cells,
             "profile": {"steps": 4}}  # fmt: skip
    path.write_text(yaml.safe_dump({k: v for k, v in whole.items() if k != "claims"}))
    return path


@pytest.fixture(scope="module")
def calibrated(study) -> tuple[Path, list[set[str]]]:
    """The file, and the modules of each process that the command was."""
    folder = study.parent / "modules"
    folder.mkdir()
    out = study.with_suffix(".json")
    command = [sys.executable, "-c", SPY, str(folder), "calibrate", f"--study={study}",
               f"--out={out}"]  # fmt: skip
    subprocess.run(command, check=True, cwd=ROOT, timeout=120, env=os.environ)
    return out, [set(json.loads(file.read_text())) for file in folder.iterdir()]


def test_no_process_could_make_a_step(calibrated) -> None:
    """None of them has loaded a model, the shared step, the loop or a strategy's step."""
    _, processes = calibrated
    assert sum("torch" in modules for modules in processes) >= 3
    assert any("torch" not in modules for modules in processes), "the parent"
    for modules in processes:
        assert not modules & set(TRAINS)


def test_the_file_predicts_each_cell(calibrated, study, tmp_path, capsys) -> None:
    out = tmp_path / "p.csv"
    words = f"predict --study {study} --calibration {calibrated[0]} --out {out}"
    assert main(words.split()) == 0
    assert "no results of this study are here" in capsys.readouterr().out
    lines = out.read_text().splitlines()
    assert len(lines) == 4
    assert all(line.split(",")[2] for line in lines[: 3 + INSTALLED])
    words = f"trace --study {study} --calibration {calibrated[0]} --out {tmp_path}"
    assert main(words.split()) == 0
    assert f"{tmp_path}/zero3/n1: 2 ranks, " in capsys.readouterr().out
    assert len(list(tmp_path.glob("*/n1/trace.*.et"))) == 4 + 2 * INSTALLED


@pytest.mark.skipif(not INSTALLED, reason="Horovod is not installed, see `doctor`")
def test_gradients_that_a_library_reduces_are_timed_by_it(calibrated) -> None:
    """In a job of Horovod's own, at the sizes of torch's all-reduce."""
    times = json.loads(calibrated[0].read_text())["collectives"]
    sizes = {kind: [one["bytes"] for one in times if one["kind"] == kind]
             for kind in ("all_reduce", Horovod().all_reduces_by)}  # fmt: skip
    assert sizes["all_reduce"] == sizes[Horovod().all_reduces_by] != []


def test_the_largest_world_of_a_link_is_timed_in_groups_of_its_axes(monkeypatch) -> None:
    """A study of one and four nodes, with axes of two and four ranks."""
    worlds: list[int] = []

    def on_nodes(run, _: Any, times: Any) -> list[Any]:
        worlds.append(run.spec.world.nodes)
        return [
            [
                {"ranks": ranks, "kind": "all_reduce", "bytes": 4, "moments": [(0.0, 1.0)]}
                for ranks in sizes
            ]
            for sizes in 4 * [times.args[1]]
        ]

    monkeypatch.setattr(collectives, "on_nodes", on_nodes)
    runs = runs_of(load_study(ROOT / "workflow/config/gspmd2021/annotations.yaml"))
    found = collectives.measured(runs, runs, sorted(os.sched_getaffinity(0)), 1.0)
    assert worlds == [4] * collectives.JOBS
    assert [(one["link"], one["ranks"]) for one in found] == [("1gbit", 2), ("1gbit", 4)]


def test_what_times_collectives_ends_with_the_command_also_in_a_namespace(monkeypatch) -> None:
    """A process that enters a user namespace is no longer told that its parent has ended."""
    called: list[object] = []
    monkeypatch.setattr(nodes, "Nodes", lambda *_: called.append("nodes"))
    monkeypatch.setattr(nodes, "stay_with", called.append)
    monkeypatch.setattr(nodes, "at_once", lambda *_: [])
    (run, *_) = runs_of(load_study(ROOT / "workflow/config/layouts/study.yaml"))
    assert nodes._build(run.spec.world, [0], lambda *_: None) == []
    assert called == ["nodes", os.getppid()]


def test_a_collective_lasts_from_the_mean_beginning_to_the_last_end() -> None:
    def rank(begun: float, ended: float, kind: str) -> dict[str, Any]:
        return {"ranks": 2, "kind": kind, "bytes": 4, "moments": [(begun, ended)]}

    for kind, seconds in (("all_reduce", [4.0, 4.0]), ("send", [4.0, 4.0]), ("shift", [3.75, 3.5])):
        # Two groups at once, in time that is dilated twice.
        each = [rank(0, 8, kind), rank(2, 9, kind), rank(4, 12, kind), rank(4, 10, kind)]
        assert collectives._of_all(each, 2.0) == seconds


def test_an_operator_is_timed_after_all_others() -> None:
    called: list[str] = []
    ticks = iter(range(10**6))
    works = [lambda: called.append("a"), lambda: called.append("b")]
    assert operators._in_turn(works, 0.0, lambda: float(next(ticks))) == [1.0, 1.0]
    assert called == ["a", "b"] * (operators.LEAST_ROUNDS + 1)


def test_an_update_is_timed_after_passes() -> None:
    """Not after another one, which would leave code and optimiser in the caches."""
    passes = [Operator("add", "float32", (size, 8)) for size in range(1, 7)]
    updates = [Operator("update", "float32", (8, size)) for size in (1, 2)]
    spread = operators._spread([*passes, *updates])
    assert [place for place, one in enumerate(spread) if one.kind == "update"] == [2, 6]
    assert [one for one in spread if one.kind == "add"] == passes


def test_stretches_after_collectives_are_timed_where_nodes_share_cores() -> None:
    """On one core for two nodes: of one node at work and of two. None with a yardstick."""
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    smoke = load_study(ROOT / "workflow/config/smoke/study.yaml")
    ddp, timed = a_cell("ddp"), {Operator("add", "float32", (8, 8)): 1e-4}
    for yardstick, counts in ((False, [1, 2]), (True, [])):
        cluster = smoke.to_dict()["cluster"] | {"nodes": [1, 2]}
        if not yardstick:
            del cluster["yardstick"], cluster["real_time"]
        study = smoke.but(cluster=cluster, cells=[ddp], profile=None, claims=None, compares=None)
        cores = [min(os.sched_getaffinity(0))]
        waits = calibrate._after_collectives(runs_of(study), timed, cores)
        assert sorted({one["nodes"] for one in waits}) == counts
        assert len(waits) == len(counts) * len(STRETCHES)
        assert all(one["dilated_for"] == 2 and one["more"] >= 0 for one in waits)


def test_gpus_and_other_machines_are_refused() -> None:
    for name in ("bai2022", "one-gpu"):
        with pytest.raises(StudyError, match="calibrate measures emulated nodes or the loopback"):
            measured(load_study(ROOT / f"workflow/config/{name}/study.yaml"), [0])
