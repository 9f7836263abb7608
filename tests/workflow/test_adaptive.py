"""A study with adaptive repeats: rounds ask for more until the interval is narrow."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.records import write_record
from pipeline.study.expansion import expand
from pipeline.study.load import load_study
from tests.fake_records import fail, make_record
from tests.workflow.project import STUDY, make_project

pytestmark = [pytest.mark.system, pytest.mark.slow]
METRICS = "results/tiny/metrics/metrics.parquet"


def test_rounds_add_repeats_until_no_cell_asks_for_one(tmp_path: Path) -> None:
    cells = STUDY["cells"]
    assert isinstance(cells, list)
    # No interval is as narrow as this, so the cell that runs gets the most repeats; the other one
    # never runs here and gets no more than the fewest.
    repeats = {"at_least": 6, "at_most": 7, "within": 1e-6}
    project = make_project(tmp_path, cells=[cells[0], cells[3]], repeats=repeats, profile=None)
    # The repeat that only a round can ask for is trained; the records of the others are made up.
    runs = project.results / "runs"
    specs = [s for s in expand(load_study(project.study)) if s.repeat < 6]
    manifest = "results/tiny/tokens/manifest.json"
    files = [runs / spec.run_id.partition("/")[2] for spec in specs]
    project.run("--cores", "2", manifest, *(f"{f.relative_to(tmp_path)}/spec.json" for f in files))
    for spec, folder in zip(specs, files, strict=True):
        write_record(folder, make_record(spec, fail(spec)))
    project.run("--cores", "2", METRICS)
    ran = {path.parent.name for path in project.results.glob("runs/single/n1/*/run.json")}
    assert ran == {f"r{repeat}" for repeat in range(7)}
    assert len(list(project.results.glob("runs/apex/n1/r*/run.json"))) == 6
    assert json.loads((project.results / "rounds/6.json").read_text()) == ["tiny/single/n1/r6"]
    record = json.loads((project.results / "runs/single/n1/r6/run.json").read_text())
    assert record["ranks"][0]["timer_overhead_seconds"] > 0
    assert "Nothing to be done" in project.run("--cores", "2", METRICS).stderr
