"""Characters of Chinese, Japanese and Korean, from a label to figure, PDF, LaTeX and HTML."""

import shutil
import subprocess
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

from pipeline import fonts
from pipeline.figures import theme
from tests.fake_records import make_study, make_table
from tests.unit.paper.papers import make_paper, make_results

CJK = "分散学習 训练 한국어 カ、"
needs_font = pytest.mark.skipif(
    fonts.fallback() is None, reason="this environment was made before the lock had the font"
)


@needs_font
def test_what_the_font_has_is_not_missing() -> None:
    assert fonts.missing([CJK, "Größe", "\N{FULLWIDTH LATIN CAPITAL LETTER A}"]) == []
    assert fonts.missing(["🙂 分 🙂"]) == ["🙂"]


def test_without_the_font_all_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fonts, "find_spec", lambda name: None)
    assert fonts.fallback() is None
    assert fonts.missing(["分散 of 分", "plain"]) == ["分", "散"]


@needs_font
def test_a_figure_draws_them_and_embeds_the_font(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    theme.apply()
    for name in ("first", "second"):
        figure = plt.figure(figsize=(3, 1))
        figure.text(0.1, 0.5, f"DDP {CJK}")
        theme.save(figure, tmp_path, name)
    assert not [w for w in recwarn if "missing from font" in str(w.message)]
    for kind in theme.FORMATS:
        assert (tmp_path / f"first.{kind}").read_bytes() == (
            tmp_path / f"second.{kind}"
        ).read_bytes()
    assert b"NotoSansCJK" in (tmp_path / "first.pdf").read_bytes()


@pytest.fixture(scope="module")
def paper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    cells = [{"name": "a", "label": f"DDP {CJK}", "strategy": "single", "precision": "fp32"}]
    changes = {
        "cells": cells,
        "repeats": 1,
        "title": CJK,
        "cluster": {**make_study()["cluster"], "nodes": [1]},
        "workload": {**make_study()["workload"], "steps": 8, "untimed_steps": 1},
    }
    root = tmp_path_factory.mktemp("cjk")
    make_results(root, make_study(**changes, claims=["bai2022"]), make_table(**changes))
    assert make_paper(root, root) == 0
    return root / "paper"


@needs_font
def test_the_paper_is_still_a_tagged_one(paper: Path) -> None:
    assert b"<pdfuaid:part>1<" in (paper / "paper.pdf").read_bytes()
    if shutil.which("pdftotext"):
        done = subprocess.check_output(["pdftotext", str(paper / "paper.pdf"), "-"], text=True)
        assert CJK in done


def test_latex_asks_for_a_font_of_them_and_html_leaves_it_to_the_browser(paper: Path) -> None:
    latex = (paper / "paper.tex").read_text(encoding="utf-8")
    assert f"\\setCJKmainfont{{{fonts.FAMILY}}}" in latex and CJK in latex
    assert CJK in (paper / "paper.html").read_text(encoding="utf-8")
