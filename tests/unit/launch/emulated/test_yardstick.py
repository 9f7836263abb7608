"""The machine's undisturbed speed: what is measured, and that no other machine's is used."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from pipeline import schemas
from pipeline.errors import LaunchError, SamestepError
from pipeline.launch.emulated import yardstick
from pipeline.resolved import resolve, runs_of
from pipeline.study.expansion import expand
from pipeline.study.load import load_study
from pipeline.study.spec import RunSpec

ROOT = Path(__file__).parents[4]


@pytest.fixture(scope="module")
def study(tmp_path_factory) -> Path:
    """A study that has a yardstick, with a model that takes no time."""
    path = tmp_path_factory.mktemp("study") / "measured.yaml"
    model = {"num_layers": 1, "width": 8, "num_heads": 1, "context": 8}
    base = load_study(ROOT / "workflow/config/eight-nodes/study.yaml")
    changes = {"cluster": {"yardstick": True, "nodes": [1, 2]}, "model": model}
    cells = base.to_dict()["cells"]
    changes["cells"] = [cell | {"nodes": [1]} for cell in cells[:1]] + [
        {key: value for key, value in cell.items() if key != "nodes"} for cell in cells[1:]
    ]
    path.write_text(yaml.safe_dump({"extends": "smoke", "study": "measured", **changes}))
    return path


@pytest.fixture(scope="module")
def measured(study) -> Path:
    out = study.with_suffix(".json")
    command = [sys.executable, "-m", "pipeline", "yardstick", f"--study={study}", f"--out={out}"]
    command.append("--seconds=1")
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=120)
    return out


def run_of(study: Path, cell: str, nodes: int) -> RunSpec:
    runs = expand(load_study(study))
    return next(run for run in runs if run.cell.startswith(cell) and run.world.nodes == nodes)


def test_every_precision_and_micro_batch_of_the_study_is_measured(study, measured) -> None:
    content = schemas.read(measured, "yardstick", "test")
    found = {(one["precision"], one["sequences"]) for one in content["passes"]}
    assert found == {(p, n) for p in ("fp32", "amp_o1", "amp_o2") for n in (8, 16)}
    assert found == {*map(yardstick.shape_of, runs_of(load_study(study)))}
    for one in content["passes"]:
        assert len(one["rounds"]) >= yardstick.MIN_ROUNDS
        assert 0 < one["forward_seconds"] < one["step_seconds"]


def test_a_run_gets_the_pass_of_its_own_micro_batch(study, measured) -> None:
    content = json.loads(measured.read_text())
    for nodes in (1, 2):
        spec = run_of(study, "horovod-amp", nodes)
        [wanted] = [
            one["forward_seconds"]
            for one in content["passes"]
            if (one["precision"], one["sequences"]) == ("amp_o1", 16 // nodes)
        ]
        assert yardstick.forward_seconds(measured, resolve(spec)) == wanted
    for name in ("torch", "environment"):
        del content[name]  # as an earlier version wrote it
    measured.with_name("earlier.json").write_text(json.dumps(content))
    assert yardstick.forward_seconds(measured.with_name("earlier.json"), resolve(spec)) == wanted
    plain = replace(spec, world=replace(spec.world, yardstick=None))
    assert yardstick.forward_seconds(None, resolve(plain)) is None
    # In real time its forward passes are timed where there is a yardstick to hold them against.
    real = replace(plain, world=replace(plain.world, real_time=True))
    assert yardstick.forward_seconds(measured, resolve(real)) == wanted
    assert yardstick.forward_seconds(None, resolve(real)) is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"hardware": {"cpu_model": "Another Processor"}}, "cpu_model Another Processor"),
        ({"model": {"width": 16}}, "model {'width': 16}"),
        ({"torch": "1.13.1"}, "torch 1.13.1"),
        ({"environment": {"ATEN_CPU_CAPABILITY": "default"}}, "environment {'ATEN_CPU_CAP"),
        ({"passes": []}, "passes"),
    ],
)
def test_a_yardstick_of_something_else_is_refused(study, measured, tmp_path, change, said) -> None:
    other = tmp_path / "other.json"
    other.write_text(json.dumps(json.loads(measured.read_text()) | change))
    with pytest.raises(SamestepError, match=said):
        yardstick.forward_seconds(other, resolve(run_of(study, "dps", 2)))


def test_a_missing_yardstick_or_pass_is_named_with_the_fix(study, measured) -> None:
    spec = run_of(study, "dps", 2)
    with pytest.raises(LaunchError, match="add --yardstick FILE"):
        yardstick.forward_seconds(None, resolve(spec))
    more = replace(spec, workload=replace(spec.workload, global_batch=48))
    with pytest.raises(LaunchError, match=r"no passes of 24 sequences in fp32.*remove the file"):
        yardstick.forward_seconds(measured, resolve(more))


def test_a_yardstick_that_was_edited_is_refused(study, measured, tmp_path) -> None:
    content = json.loads(measured.read_text())
    for one in content["passes"]:
        one["forward_seconds"] *= 2
    (tmp_path / "y.json").write_text(json.dumps(content))
    with pytest.raises(LaunchError, match="other forward_seconds than its rounds give; remove"):
        yardstick.forward_seconds(tmp_path / "y.json", resolve(run_of(study, "dps", 2)))
