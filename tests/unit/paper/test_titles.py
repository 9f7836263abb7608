"""Titles and labels of any text: what figures, typst, LaTeX and the manuscript show of them."""

import csv
import json
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pypandoc
import pytest
import typst
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from pipeline import fonts
from pipeline.fonts import files, printed
from pipeline.paper.export import TYPST
from pipeline.paper.manuscript import SOURCES
from pipeline.text import markdown
from tests.fake_records import a_cell, make_study
from tests.fake_results import make_results, stage
from tests.nasty_texts import LABELS, TITLE
from tests.programs import ran
from tests.unit.test_text import TEXTS, inlines, pandoc, plain_latex, words

PRINTED, *PRINTED_LABELS = map(fonts.printed, (TITLE, *LABELS))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results and paper of a study of one cell for each label."""
    cells = [a_cell(f"c{place}", "single", label) for place, label in enumerate(LABELS)]
    changes: dict[str, Any] = {"title": TITLE, "cells": cells, "repeats": 1}
    changes["cluster"] = {**make_study()["cluster"], "nodes": [1]}
    changes["workload"] = {**make_study()["workload"], "steps": 8, "untimed_steps": 1}
    root = tmp_path_factory.mktemp("titles")
    make_results(root, make_study(**changes, claims=["bai2022"]))
    # What a file of claims says is text too.
    path = root / "verdicts.json"
    found = json.loads(path.read_text(encoding="utf-8"))
    for one in found["verdicts"]:
        one |= {key: f"{key} {TITLE}" for key in ("sentence", "publication", "source")}
    effect = {"value": 1.0, "low": 0.9, "high": 1.1, "unit": "1", "interval": "x", "repeats": 1}
    tested = next(one for one in found["verdicts"] if one["claimed"])
    tested |= {"verdict": "undecided", "line": "undecided: x", "effect": effect}
    path.write_text(json.dumps(found), encoding="utf-8")
    assert stage(root, "paper") == 0
    return root


def typst_text(content: Any) -> str:
    """What typst prints of a content; one that is no text is named, so that it is found."""
    if isinstance(content, list):
        return "".join(map(typst_text, content))
    if not isinstance(content, dict):
        return ""
    if content["func"] in ("text", "symbol", "space"):
        return str(content.get("text", " "))
    if content["func"] == "smartquote":
        # Printed as given, since the template switches typst's own quotes off.
        return '"' if content.get("double", True) else "'"
    inside = "".join(typst_text(content.get(key)) for key in ("body", "child", "children"))
    return inside if content["func"] in ("sequence", "styled", "cell", "block") else f"<{inside}>"


def cells_of(content: Any) -> list[Any]:
    """Bodies of all cells of the tables in a content."""
    if isinstance(content, list):
        return [cell for part in content for cell in cells_of(part)]
    if not isinstance(content, dict):
        return []
    if content["func"] == "cell":
        return [content["body"]]
    return [cell for key in ("body", "child", "children") for cell in cells_of(content.get(key))]


def query(root: Path, selector: str) -> Any:
    source = root / "generated/manuscript.typ"
    return json.loads(typst.query(str(source), selector, root=str(source.parent)))


def test_the_pdf_prints_title_and_labels_as_given(root: Path) -> None:
    assert words(typst_text(query(root, "<paper-title>"))) == words(PRINTED)
    for name in ("cells", "step_time"):
        shown = [words(typst_text(cell)) for cell in cells_of(query(root, f"<tbl:{name}>"))]
        assert {words(label) for label in PRINTED_LABELS} <= set(shown)


@pytest.mark.skipif(not shutil.which("pdftotext"), reason="needs pdftotext of poppler-utils")
def test_the_text_of_the_pdf_is_that(root: Path) -> None:
    """Glyphs are read back; marks and right-to-left words come in an order of their own."""
    assert b"<pdfuaid:part>1<" in (root / "paper/paper.pdf").read_bytes()
    command = ["pdftotext", str(root / "paper/paper.pdf"), "-"]
    text = words(subprocess.check_output(command, text=True))
    # Words may be divided where a line ends.
    close = text.replace(" ", "")
    assert words(PRINTED.partition(" Größe")[0]).replace(" ", "") in close
    for label in PRINTED_LABELS:
        assert "שלום" in label or words(label).replace(" ", "") in close


def test_latex_and_csv_hold_title_and_labels_as_given(root: Path) -> None:
    latex = (root / "paper/paper.tex").read_text(encoding="utf-8")
    assert f"\\setCJKmainfont{{{fonts.FAMILY}}}" in latex and fonts.printed(latex) == latex
    assert r"\textbackslash input\{secret\}" in latex and r"\input" not in latex
    assert r"\{figures/" in latex
    included = re.findall(r"\\includegraphics.*\{([^{}]*)\}", latex)
    assert included and all((root / "paper" / path).is_file() for path in included)
    rows = (root / "tables/step_time.tex").read_text().split(r"\midrule")[1].splitlines()[1:-3]
    firsts = {words(plain_latex(row.partition(" & ")[0])) for row in rows}
    assert firsts == {words(label) for label in PRINTED_LABELS}
    with (root / "tables/step_time.csv").open(newline="", encoding="utf-8") as file:
        assert [row["label"] for row in csv.DictReader(file)] == list(LABELS)


def test_the_manuscript_is_read_back_as_given(root: Path) -> None:
    found = pandoc((root / "generated/manuscript.md").read_text())
    assert words(inlines(found["meta"]["title"]["c"])) == words(TITLE)
    printed = pandoc((root / "generated/printed.md").read_text())
    assert words(inlines(printed["meta"]["title"]["c"])) == words(PRINTED)


def test_what_claims_say_is_printed_as_given(root: Path) -> None:
    shown = [words(typst_text(cell)) for cell in cells_of(query(root, "<tbl:claims>"))]
    assert words(f"sentence {PRINTED}") in shown


# Not shrunk: what fails is found by the marks of the first difference.
FEW = settings(
    phases=[Phase.explicit, Phase.generate],
    max_examples=3,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
MANY = st.lists(TEXTS.filter(words), min_size=40, max_size=60)


def to_typst(source: str) -> str:
    """The Markdown as typst reads it, by the options of the paper."""
    command = [pypandoc.get_pandoc_path(), "--from=markdown", f"--to={TYPST}", "--wrap=none"]
    command += ["--columns=100000", f"--lua-filter={SOURCES / 'literal.lua'}"]
    return ran(command, input=source, check=True).stdout


@given(MANY)
@FEW
def test_typst_prints_every_label_of_a_table_as_given(texts: list[str]) -> None:
    rows = "\n".join(f"| {markdown(text)} | b |" for text in texts)
    source = to_typst(f"| A | B |\n|---|---|\n{rows}\n\n: c {{#tbl:all}}\n")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "a.typ"
        file.write_text(f"#set smartquote(enabled: false)\n{source}", encoding="utf-8")
        [found] = json.loads(typst.query(str(file), "<tbl:all>", root=folder))
    printed = [_hyphens(words(typst_text(cell))) for cell in cells_of(found)]
    assert printed[2::2] == [_hyphens(words(text)) for text in texts]


@given(MANY)
@FEW
def test_typst_has_a_glyph_for_all_that_is_printed(texts: list[str]) -> None:
    """PDF/UA-1 allows no box; a document that claims it is refused where there is one."""
    source = to_typst("\n\n".join(markdown(printed(text)) for text in texts))
    template = (SOURCES / "template.typ").read_text(encoding="utf-8")
    (fonts,) = re.findall(r"#set text\(font: \(.*?\)", template)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "a.typ"
        file.write_text(f'#set document(title: "x")\n{fonts})\n{source}', encoding="utf-8")
        compiler = typst.Compiler(
            root=folder, ignore_system_fonts=True, font_paths=[str(path.parent) for path in files()]
        )
        assert compiler.compile(input=str(file), format="pdf", pdf_standards=["ua-1"])


def _hyphens(text: str) -> str:
    """typst prints a hyphen before digits as a minus."""
    return text.replace("\N{MINUS SIGN}", "-")
