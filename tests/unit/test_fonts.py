"""Characters that a plain font lacks, from title and label to figure, PDF, LaTeX and HTML."""

import re
import shutil
import subprocess
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

from pipeline import fonts
from pipeline.__main__ import main
from pipeline.figures import theme
from pipeline.text import markdown
from tests.fake_records import make_study, make_table
from tests.unit.paper.papers import make_paper, make_results

CJK = "分散学習 训练 한국어 カ、"
KHMER, RARE, PRIVATE = "\N{KHMER LETTER KA}", "\U0002d1e2", "\ue000"
# Its markup is escaped in one way at the start of a text and in another inside of it.
ROCKET = "- *DDP* 🚀"
needs_font = pytest.mark.skipif(
    fonts.fallback() is None, reason="this environment was made before the lock had the font"
)


@needs_font
def test_what_the_font_has_is_not_missing() -> None:
    assert fonts.missing([CJK, "Größe", "\N{FULLWIDTH LATIN CAPITAL LETTER A}"]) == []
    assert fonts.missing(["🙂 分 🙂"]) == ["🙂"]


def test_whatever_neither_font_has_is_missing() -> None:
    assert fonts.missing([f"x {KHMER}", f"{RARE}\N{ZERO WIDTH JOINER} {PRIVATE}"]) == [
        KHMER, RARE, PRIVATE,
    ]  # fmt: skip
    assert fonts.missing(["\N{GRINNING FACE} \N{CHECK MARK} \N{GREEK CAPITAL LETTER OMEGA}"]) == []


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ✓ 学 שלום", "plain ✓ 学 שלום"),
        ("GPT 🚀🔥 now", "GPT (rocket, fire) now"),
        ("👍🏽", "(thumbs up sign)"),
        ("\N{MATHEMATICAL BOLD CAPITAL G}2", "G2"),
        (f"a {KHMER}{PRIVATE}", "a (U+1780, U+E000)"),
        ("a\x85b", "a b"),
        ("a\U000e0041b", "ab"),
    ],
)
def test_what_has_no_glyph_is_said_in_letters(text: str, shown: str) -> None:
    assert fonts.printed(text) == shown
    # It is plain where a text becomes Markdown, so that whole documents can be rewritten.
    assert fonts.printed(markdown(text)) == markdown(shown)


def test_a_label_becomes_its_short_name_wherever_it_stands() -> None:
    names = {"DDP 🚀": "ddp", "DDP 🚀 4 ms": "slow"}
    text = "DDP 🚀 [bf16] and DDP 🚀 4\N{NO-BREAK SPACE}ms, not DP 🚀"
    assert fonts.printed(text, names) == "ddp [bf16] and slow, not DP (rocket)"


def test_without_the_font_all_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fonts, "fallback", lambda: None)
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
    one = {"strategy": "single", "precision": "fp32"}
    cells = [
        {"name": "a", "label": f"DDP {CJK}", **one},
        {"name": "ship-b", "label": ROCKET, **one},
        {"name": "ship-c", "label": f"{ROCKET} 2 ms", **one, "precision": "bf16"},
    ]
    changes = {
        "cells": cells,
        "repeats": 1,
        "title": f"{CJK} {KHMER} 🚀",
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
        assert "(U+1780) (rocket)" in done and "ship-b" in done


def test_pdf_and_latex_call_a_cell_by_its_short_name_and_the_csv_by_its_label(paper: Path) -> None:
    printed = (paper.parent / "generated/printed.md").read_text(encoding="utf-8")
    latex = (paper / "paper.tex").read_text(encoding="utf-8")
    table = (paper.parent / "tables/step_time.tex").read_text(encoding="utf-8")
    for text in (printed, latex, table):
        assert fonts.missing([text]) == [] and "ship-b" in text
        assert re.search(r"ship-c \W*torch", text) and "DDP* " not in text
    assert "(U+1780) (rocket)" in latex
    assert ROCKET in (paper.parent / "tables/step_time.csv").read_text(encoding="utf-8")


def test_a_figure_calls_it_so_too(paper: Path, recwarn: pytest.WarningsRecorder) -> None:
    given = ["--metrics", str(paper.parent / "metrics.parquet"), "--out", str(paper / "drawn")]
    assert main(["figure", "step_time", *given]) == 0
    told = re.findall("<title>(.*?), 1 node", (paper / "drawn/step_time.svg").read_text("utf-8"))
    assert set(told) == {f"DDP {CJK}", "ship-b", "ship-c [torch bf16]"}
    assert not [w for w in recwarn if "missing from font" in str(w.message)]


def test_no_text_of_a_figure_has_a_box(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    theme.apply()
    figure = plt.figure(figsize=(3, 1))
    words = figure.text(0.1, 0.5, f"claim 🚀 {KHMER}")
    theme.save(figure, tmp_path, "one")
    assert words.get_text() == "claim (rocket) (U+1780)"
    assert not [w for w in recwarn if "missing from font" in str(w.message)]


def test_latex_asks_for_a_font_of_them(paper: Path) -> None:
    latex = (paper / "paper.tex").read_text(encoding="utf-8")
    assert f"\\setCJKmainfont{{{fonts.FAMILY}}}" in latex and CJK in latex
