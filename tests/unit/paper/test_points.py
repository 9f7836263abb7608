"""The paper and the page of a study of points, made once: every set, bar, limit and point."""

import re
from html import unescape
from pathlib import Path

import pytest

from pipeline.__main__ import main
from pipeline.cost import bars, score
from pipeline.errors import SamestepError
from pipeline.paper import points
from pipeline.paper.manuscript import render, source
from pipeline.tables.points import TABLES


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("planner")
    words = ["--generated", str(folder / "generated"), "--out", str(folder / "out")]
    assert main(["points", "--study", "planner", *words]) == 0
    return folder


def test_the_pdf_is_pdf_ua_and_its_files_are_there(made: Path) -> None:
    assert b"<pdfuaid:part>1<" in (made / "out/paper/paper.pdf").read_bytes()
    latex = (made / "out/paper/paper.tex").read_text(encoding="utf-8")
    assert "figures/points.pdf" in latex and "\\appendix" not in latex
    for name in TABLES:
        for kind in ("csv", "md", "tex"):
            assert (made / f"out/tables/{name}.{kind}").stat().st_size > 100


def test_the_manuscript_has_every_bar_limit_and_point(made: Path) -> None:
    text = " ".join((made / "generated/manuscript.md").read_text(encoding="utf-8").split())
    for sentence in (*bars.missed(), *bars.LIMITS, bars.NOTE):
        assert " ".join(sentence.split()) in text.replace("\N{NO-BREAK SPACE}", " ")
    shown = text.replace("\\", "")
    for row in score.every():
        assert f"| {row['point']} |" in shown
    assert all(f"| {row['point']} |" in shown for row in score.suspect())


def test_every_table_is_shown_and_referred_to() -> None:
    text = source(points.FILE)
    assert sorted(re.findall(r'\btable\("(\w+)"\)', text)) == sorted(TABLES)
    assert set(re.findall(r'see_table\("(\w+)"\)', text)) == {*TABLES}


def test_the_page_says_the_same_and_loads_nothing(made: Path) -> None:
    page = unescape((made / "out/report.html").read_text(encoding="utf-8"))
    plain = re.sub(r"</?code>", "`", page)
    assert all(sentence in plain for sentence in (*bars.missed(), *bars.LIMITS, bars.NOTE))
    assert all(f"<td>{row['point']}</td>" in page for row in score.every())
    assert not re.findall(r'(?:src|href)="(?!data:|#)', page)


def test_an_unknown_name_is_an_error_that_names_the_manuscript(tmp_path: Path) -> None:
    with pytest.raises(SamestepError, match=r"paper/points.md: .*pipeline/paper/points.py"):
        render("{{ invented }}", {}, tmp_path, points.CAPTIONS, points.FILE)
