"""What the export makes of what pandoc writes."""

from pathlib import Path

import pytest

from pipeline.paper.export import _table_lines
from tests.unit.paper.papers import make_paper


@pytest.fixture(scope="module")
def latex(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    out = tmp_path_factory.mktemp("export")
    assert make_paper(folder, out) == 0
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


def test_the_class_is_named_once_and_loads_what_it_has_itself(latex: str) -> None:
    assert latex.count("\\documentclass") == 1
    assert latex.index("\\@ifclassloaded{acmart}") < latex.index("{hyperref}")
