"""Snakemake reads no wildcard in a title or label, and its report no markup."""

import json
import re
from html import unescape
from pathlib import Path
from types import SimpleNamespace

import yaml
from docutils.core import publish_parts
from jinja2 import Environment

from tests.nasty_texts import LABELS, TITLE
from tests.workflow.project import STUDY, make_project


def test_snakemake_reads_no_title_or_label(tmp_path: Path) -> None:
    """Nor does a study without claims have verdicts."""
    cell = STUDY["cells"][0]
    cells = [{**cell, "name": f"c{n}", "label": label} for n, label in enumerate(LABELS)]
    text = "{x} of {wildcards.name}.txt"
    corpus = {"source": "text", "paths": [text], "document": "block"}
    project = make_project(tmp_path, title=TITLE, cells=cells, corpus=corpus, claims=[])
    (project.folder / text).write_text("there is such a file\n" * 50)
    jobs = project.jobs("all")
    assert (jobs["study_file"], jobs["train"], jobs["manuscript"]) == (1, 2 * len(LABELS), 1)
    assert "claims" not in jobs
    written = ["study.json", "tokens.spec.json"]
    project.run("--cores", "1", *(f"results/tiny/{name}" for name in written))
    study = json.loads((project.results / "study.json").read_text())
    assert study == yaml.safe_load(project.study.read_text())
    assert [study["title"], *(cell["label"] for cell in study["cells"])] == [TITLE, *LABELS]
    tokens = json.loads((project.results / "tokens.spec.json").read_text())
    assert tokens["corpus"]["paths"] == [text]


def test_the_report_of_snakemake_shows_the_title_as_given() -> None:
    source = Path("workflow/report/workflow.rst").read_text(encoding="utf-8")
    config = {"study": "tiny", "title": TITLE + " a_ |b| .. raw:: html"}
    rst = Environment().from_string(source).render(snakemake=SimpleNamespace(config=config))
    shown = publish_parts(rst, writer="html", settings_overrides={"report_level": 1})["html_body"]
    text = " ".join(unescape(re.sub("<[^>]*>", "", shown)).split())
    assert f"Study tiny: {' '.join(config['title'].split())}. Cells are compared" in text
