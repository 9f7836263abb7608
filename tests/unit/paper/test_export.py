"""What the export makes of what pandoc writes."""

import re
import subprocess
from pathlib import Path

import pypandoc
import pytest

from pipeline.paper import export
from pipeline.paper.export import TYPST, _table_lines
from pipeline.paper.manuscript import SOURCES
from tests.unit.paper.papers import make_paper


@pytest.fixture(scope="module")
def out(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one build wrote."""
    made = tmp_path_factory.mktemp("export")
    assert make_paper(folder, made) == 0
    return made


@pytest.fixture(scope="module")
def latex(out: Path) -> str:
    return (out / "paper/paper.tex").read_text(encoding="utf-8")


def test_before_the_appendix_all_floats_over_two_columns(latex: str) -> None:
    """`longtable` is refused by classes of two columns, which conferences have."""
    body, appendix = latex.split("\n\\onecolumn\n")
    assert "\\begin{longtable}" not in body.split("\\begin{document}")[1]
    for kind in ("table", "figure"):
        assert body.count(f"\\begin{{{kind}*}}") == body.count(f"\\end{{{kind}*}}") > 1
        assert f"\\begin{{{kind}}}" not in body
    assert body.count("\\begin{tabular}") == body.count("\\label{tbl:")
    assert "\\endhead" not in body and "\\begin{longtable}" in appendix


def test_lines_of_tables_are_counted_with_those_of_their_longest_cells(tmp_path: Path) -> None:
    (tmp_path / "few.md").write_text("| a |\n|:--|\n| b |\n\n: few\n")
    (tmp_path / "many.md").write_text("| a |\n|:--|\n" + f"| {'b' * 90} |\n" * 20 + "\n: many\n")
    assert _table_lines(tmp_path) == {"few": 2, "many": 61}


def test_numbers_of_a_wide_table_have_their_room_and_its_heads_wrap() -> None:
    """typst made the widest column of numbers narrower, which lay over the one before it."""
    heads = ["Cell", *(f"Schedule number {n}" for n in range(8))]
    wide = [heads, ["Annotated, data 2 x model 2", "55.3\u00a0[53.5,\u00a056.5]", *["18.4"] * 7]]
    few = [heads[:3], ["DDP", "18.4", "18.4"]]
    source = "\n".join(_pipe_table(rows) for rows in (wide, few))
    command = [pypandoc.get_pandoc_path(), "--from=markdown", f"--to={TYPST}", "--columns=100000"]
    command += [f"--lua-filter={SOURCES / 'literal.lua'}"]
    done = subprocess.run(command, input=source, capture_output=True, text=True, check=True)
    [given] = re.findall(r"columns: \((.*)\)", done.stdout)
    shares = [float(share.strip(" %")) for share in given.split(",")]
    assert len(shares) == 9 and sum(shares) <= 100.1
    assert shares[1] / shares[2] == pytest.approx((17 * 3.5 + 6) / (8 * 3.5 + 6), rel=0.01)
    assert "columns: 3" in done.stdout


def _pipe_table(rows: list[list[str]]) -> str:
    rule = ["---", *["--:"] * (len(rows[0]) - 1)]
    return "\n".join(f"| {' | '.join(row)} |" for row in (rows[0], rule, *rows[1:])) + "\n"


def test_a_person_s_own_pandoc_changes_nothing(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "a.md").write_text("After [@bai2022] by Mr. Bai.\n")
    made = []
    for name in ("none", "own"):
        own = tmp_path / name / "pandoc"
        own.mkdir(parents=True)
        if name == "own":
            (own / "abbreviations").write_text("by\n")
            (own / "default.csl").write_text("<style/>")
        monkeypatch.setenv("XDG_DATA_HOME", str(own.parent))
        export._pandoc(tmp_path / "a.md", tmp_path / f"{name}.tex", ["--to=latex"], images="pdf")
        made.append((tmp_path / f"{name}.tex").read_text())
    assert "Mr.~Bai" in made[0] and made[0] == made[1]
