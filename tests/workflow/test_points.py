"""`make paper STUDY=planner`: paper and page on published points, for which nothing is trained."""

import re
from html import unescape

import pytest

from pipeline.cost import bars, score
from pipeline.tables.points import TABLES
from tests.workflow.project import Project, make_project


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Project:
    project = make_project(tmp_path_factory.mktemp("planner"))
    # Building Horovod is not what is tested.
    (project.folder / "envs/build_horovod.py").write_text("")
    done = project.make("paper", "STUDY=planner")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no runs, as nothing is trained; now points" in done.stderr
    return project


def test_make_paper_leaves_its_files_and_makes_them_once(made: Project) -> None:
    results = made.folder / "results/planner"
    assert b"<pdfuaid:part>1<" in (results / "paper/paper.pdf").read_bytes()
    latex = (results / "paper/paper.tex").read_text(encoding="utf-8")
    assert "figures/points.pdf" in latex and "\\appendix" not in latex
    tables = {path.name: path.stat().st_size for path in (results / "tables").iterdir()}
    assert tables.keys() == {f"{name}.{kind}" for name in TABLES for kind in ("csv", "md", "tex")}
    assert min(tables.values()) > 100
    assert not {"runs", "tokens", "metrics"} & {path.name for path in results.iterdir()}
    study = "workflow/config/planner/points.yaml"
    again = made.call(
        "sh", "envs/run_workflow.sh", "--configfile", study, "--cores", "2", "--dry-run"
    )
    assert again.returncode == 0 and "Nothing to be done" in again.stdout + again.stderr


def test_the_manuscript_has_every_bar_limit_and_point(made: Project) -> None:
    file = made.folder / "paper/generated/planner/manuscript.md"
    text = " ".join(file.read_text(encoding="utf-8").split())
    for sentence in (*bars.missed(), *bars.LIMITS, bars.NOTE):
        assert " ".join(sentence.split()) in text.replace("\N{NO-BREAK SPACE}", " ")
    shown = text.replace("\\", "")
    assert all(f"| {row['point']} |" in shown for row in (*score.every(), *score.suspect()))


def test_the_page_says_the_same_and_loads_nothing(made: Project) -> None:
    page = unescape((made.folder / "results/planner/report.html").read_text(encoding="utf-8"))
    plain = re.sub(r"</?code>", "`", page)
    assert all(sentence in plain for sentence in (*bars.missed(), *bars.LIMITS, bars.NOTE))
    assert all(f"<td>{row['point']}</td>" in page for row in score.every())
    assert not re.findall(r'(?:src|href)="(?!data:|#)', page)
