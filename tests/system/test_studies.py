"""A study on published claims, from its text to its verdicts with a run of few steps a cell."""

import json
from pathlib import Path

import yaml

from pipeline.records import read_record
from pipeline.study.load import find_study, load_study
from tests.workflow.project import make_project

# The gate runs `smoke` whole, `make studies` all. This one has layouts that no other test trains.
NAME = "gspmd2021-annotations"


def test_a_study_on_claims_comes_to_its_verdicts(tmp_path: Path) -> None:
    """On the loopback: its claims are on equal steps."""
    project = make_project(tmp_path)
    emulated = ("links", "cores_per_node", "yardstick", "real_time")
    small = {
        "extends": NAME,
        "study": f"small-{NAME}",
        "claims": [*load_study(find_study(NAME)).claims],
        "repeats": 1,
        "profile": None,
        "workload": {"steps": 3, "untimed_steps": 1},
        "cluster": {"network": "loopback", "threads_per_rank": 1, **dict.fromkeys(emulated)},
    }
    project.study.write_text(yaml.safe_dump(small))
    project.run("--cores", "2", "claims")
    results = project.folder / "results" / str(small["study"])
    runs = [read_record(Path(path).parent) for path in results.glob("runs/*/*/r0/run.json")]
    assert len(runs) == 13
    assert {run.status for run in runs} == {"ok"}, [run.run["reason"] for run in runs]
    assert json.loads((results / "claims/verdicts.json").read_text())["verdicts"]
