"""Calibration of this machine: what it starts, and that its file predicts."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from pipeline.__main__ import main
from pipeline.errors import StudyError
from pipeline.launch.calibrate import measured
from pipeline.study.load import load_study

ROOT = Path(__file__).parents[4]
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
        {"name": "ddp", "label": "DDP", "strategy": "ddp", "precision": "fp32"},
        {"name": "zero3", "label": "ZeRO", "strategy": "sharded", "precision": "fp32"},
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
    assert len(lines) == 3 and all(line.split(",")[2] for line in lines)
    words = f"trace --study {study} --calibration {calibrated[0]} --out {tmp_path}"
    assert main(words.split()) == 0
    assert f"{tmp_path}/zero3/n1: 2 ranks, " in capsys.readouterr().out
    assert len(list(tmp_path.glob("*/n1/trace.*.et"))) == 4


def test_gpus_and_other_machines_are_refused() -> None:
    for name in ("bai2022", "one-gpu"):
        with pytest.raises(StudyError, match="calibrate measures emulated nodes or the loopback"):
            measured(load_study(ROOT / f"workflow/config/{name}/study.yaml"), [0])
