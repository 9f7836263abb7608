"""Snakemake reads no wildcard in a title or label, and its report no markup."""

import json
import re
import tempfile
from html import unescape
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from docutils.core import publish_parts
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from jinja2 import Environment

from pipeline.study.load import check_study
from pipeline.text import is_visible, seen, unprintable
from tests.nasty_texts import LABELS, TITLE
from tests.unit.test_text import TEXTS
from tests.workflow.project import STUDY, make_project

CELLS: Any = STUDY["cells"]


@pytest.mark.system
def test_snakemake_reads_no_title_or_label(tmp_path: Path) -> None:
    cells = [{**cell, "label": LABELS[place]} for place, cell in enumerate(CELLS)]
    text = "{x} of {wildcards.name}.txt"
    corpus = {"source": "text", "paths": [text], "document": "block"}
    project = make_project(tmp_path, title=TITLE, cells=cells, corpus=corpus)
    (project.folder / text).write_text("there is such a file")
    jobs = project.jobs("all")
    assert (jobs["study_file"], jobs["train"], jobs["manuscript"]) == (1, 8, 1)
    written = ["study.json", "tokens.spec.json"]
    project.run("--cores", "1", *(f"results/tiny/{name}" for name in written))
    study = json.loads((project.results / "study.json").read_text())
    assert study == yaml.safe_load(project.study.read_text())
    tokens = json.loads((project.results / "tokens.spec.json").read_text())
    assert tokens["corpus"]["paths"] == [text]


SHOWN = TEXTS.filter(lambda text: is_visible(text) and not unprintable(text))


@pytest.mark.system
@given(st.lists(SHOWN, min_size=40, max_size=60, unique_by=seen))
@settings(
    # Not shrunk: each example starts Snakemake.
    phases=[Phase.explicit, Phase.generate],
    max_examples=1,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
def test_any_title_and_label_goes_through_yaml_and_snakemake(texts: list[str]) -> None:
    title, *labels = texts
    cells = [{**CELLS[0], "name": f"c{n}", "label": label} for n, label in enumerate(labels)]
    with tempfile.TemporaryDirectory() as folder:
        project = make_project(Path(folder), title=title, cells=cells)
        given_ = yaml.safe_load(project.study.read_text())
        assert [given_["title"], *(cell["label"] for cell in given_["cells"])] == texts
        check_study(given_, "tiny.yaml")
        project.run("--cores", "1", "results/tiny/study.json")
        assert json.loads((project.results / "study.json").read_text()) == given_


def test_the_report_of_snakemake_shows_the_title_as_given() -> None:
    source = Path("workflow/report/workflow.rst").read_text(encoding="utf-8")
    config = {"study": "tiny", "title": TITLE + " a_ |b| .. raw:: html"}
    rst = Environment().from_string(source).render(snakemake=SimpleNamespace(config=config))
    shown = publish_parts(rst, writer="html", settings_overrides={"report_level": 1})["html_body"]
    text = " ".join(unescape(re.sub("<[^>]*>", "", shown)).split())
    assert f"Study tiny: {' '.join(config['title'].split())}. Cells are compared" in text
