"""A study on published claims, from its text to its verdicts with a run of few steps a cell."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from pipeline.emulation.nodes import why_not
from pipeline.records import read_record
from pipeline.study.load import find_study, load_study
from tests.workflow.project import Project, make_project

REASON = why_not()

pytestmark = [
    pytest.mark.system,
    pytest.mark.alone,
    pytest.mark.skipif(REASON is not None, reason=f"no emulated nodes here: {REASON}"),
]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return make_project(tmp_path_factory.mktemp("studies"))


# The gate runs `smoke` whole, and `make studies` all. Each takes a minute here, so that the gate
# has the shortest one.
@pytest.mark.parametrize("name", ["gspmd2021-annotations"])
def test_a_study_on_claims_comes_to_its_verdicts(project: Project, name: str) -> None:
    study = load_study(find_study(name))
    own_nodes = study.cluster.network == "emulated"
    small = {
        "extends": name,
        "study": f"small-{name}",
        "claims": [*study.claims],
        "repeats": 1,
        "workload": {"steps": 3, "untimed_steps": 1},
        **dict.fromkeys(("profile", "beginnings")),
        **({"cluster": dict.fromkeys(("yardstick", "real_time"))} if own_nodes else {}),
    }
    project.study.write_text(yaml.safe_dump(small))
    project.run("--cores", "2", "claims")
    results = project.folder / "results" / str(small["study"])
    runs = [read_record(Path(path).parent) for path in results.glob("runs/*/*/r0/run.json")]
    assert {run.status for run in runs} == {"ok"}, [run.run["reason"] for run in runs]
    assert json.loads((results / "claims/verdicts.json").read_text())["verdicts"]
