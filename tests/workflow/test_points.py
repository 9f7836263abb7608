"""`make paper STUDY=planner`: a paper on published points, for which nothing is trained."""

from pathlib import Path

from pipeline.tables.points import TABLES
from tests.workflow.project import make_project


def test_make_paper(tmp_path: Path) -> None:
    project = make_project(tmp_path / "checkout")
    # Building Horovod is not what is tested.
    (project.folder / "envs/build_horovod.py").write_text("")
    done = project.make("paper", "STUDY=planner")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no runs, as nothing is trained; now points" in done.stderr
    results = project.folder / "results/planner"
    assert (results / "paper/paper.pdf").read_bytes().startswith(b"%PDF")
    assert (results / "report.html").stat().st_size > 10**5
    assert {path.stem for path in (results / "tables").iterdir()} == set(TABLES)
    assert not {"runs", "tokens", "metrics"} & {path.name for path in results.iterdir()}
    study = "workflow/config/planner/points.yaml"
    again = project.call(
        "sh", "envs/run_workflow.sh", "--configfile", study, "--cores", "2", "--dry-run"
    )
    assert again.returncode == 0 and "Nothing to be done" in again.stdout + again.stderr
