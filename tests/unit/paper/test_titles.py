"""Titles and labels of any text: what figures, typst, LaTeX and the manuscript show of them."""

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest
import typst

from pipeline import fonts
from tests.fake_records import a_cell, make_study
from tests.fake_results import make_results, stage
from tests.nasty_texts import LABELS, TITLE
from tests.unit.test_text import plain_latex, words

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


def test_the_pdf_prints_title_labels_and_claims_as_given(root: Path) -> None:
    # What a machine can check of PDF/UA-1 typst has checked; it writes the part of the standard.
    assert b"<pdfuaid:part>1<" in (root / "paper/paper.pdf").read_bytes()
    assert words(typst_text(query(root, "<paper-title>"))) == words(PRINTED)
    labels = {words(label) for label in PRINTED_LABELS}
    claim = {words(f"sentence {PRINTED}")}
    for name, given in (("cells", labels), ("step_time", labels), ("claims", claim)):
        shown = [words(typst_text(cell)) for cell in cells_of(query(root, f"<tbl:{name}>"))]
        # Behind the sentence of a claim stands its place.
        assert all(any(one in cell for cell in shown) for one in given)


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
