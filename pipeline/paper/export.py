"""Manuscript -> PDF (typst), LaTeX and self-contained HTML; the one date is the records'."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pipeline.errors import SamestepError
from pipeline.files import atomic_path, write_text
from pipeline.paper.manuscript import SOURCES, read_table

# Quotes as they are given: typst would turn an apostrophe at the start of a word around.
TYPST = "typst-smart"
# At the size of type in paper/template.typ, with room for a caption.
_LINES_OF_A_PAGE, _LETTERS_OF_A_CELL = 46, 40
# The command alone: a title may say `{figures/` too.
_INCLUDED = re.compile(r"(\\includegraphics(?:\[[^\n]*\])?)\{figures/")


def write_pdf(generated: Path, final: Path, date: Mapping[str, Any]) -> None:
    """Compile generated/manuscript.md to `final`, a PDF/UA-1; equal inputs give equal bytes.

    Only typst's own fonts are used, so that the pages do not depend on what is installed.
    """
    import typst

    source = generated / "manuscript.typ"
    when = f"datetime(year: {date['year']}, month: {date['month']}, day: {date['day']})"
    options = [
        f"--to={TYPST}",
        # A wrapped line could begin with what is a list or a heading there.
        "--wrap=none",
        "--columns=100000",  # no table gets widths of its own: typst fits the columns to the page
        f"--template={SOURCES / 'template.typ'}",
        f"--variable=fixed-date:{when}",
    ]
    long = _long_tables(generated / "tables")
    options += [f"--variable=long-table:{name}" for name in long]
    _pandoc(generated, source, options, images="svg")
    noon = datetime(date["year"], date["month"], date["day"], 12, tzinfo=UTC)
    compiler = typst.Compiler(root=str(generated), ignore_system_fonts=True)
    try:
        # typst refuses what it can see to break PDF/UA-1, such as a figure without a text.
        pdf = _compiled(compiler, source, noon, ["ua-1"])
    except typst.TypstError as error:
        message = " ".join(str(error).split())[:300]
        raise SamestepError(
            f"{source}: typst could not compile it ({message}); fix paper/template.typ or the "
            "manuscript"
        ) from error
    with atomic_path(final) as temporary:
        temporary.write_bytes(pdf if isinstance(pdf, bytes) else b"".join(pdf or []))


def _compiled(compiler: Any, source: Path, noon: datetime, standards: list[str]) -> Any:
    """The PDF; a label in a script that the fonts lack is left to them, which no standard allows.

    That is said, since the file then claims no standard. Raises TypstError for all else.
    """
    import typst

    given = {"input": str(source), "format": "pdf", "timestamp": noon}
    try:
        return compiler.compile(**given, pdf_standards=standards)
    except typst.TypstError as error:
        if "could not be displayed with font" not in str(error):
            raise
        told = " ".join(str(error).split())[:160]
        print(f"note: the PDF is no PDF/UA-1, as a character has no glyph: {told}", file=sys.stderr)
        return compiler.compile(**given)


def write_latex(generated: Path, final: Path, figures: Path) -> None:
    """A LaTeX file for submission that includes the figures as PDF, relative to itself."""
    _pandoc(
        generated,
        final,
        ["--to=latex", "--standalone", "--variable=documentclass:article",
         "--variable=geometry:margin=25mm", "--variable=fontsize:10pt"],
        images="pdf",
    )  # fmt: skip
    folder = Path(os.path.relpath(figures, final.parent)).as_posix()
    text = final.read_text(encoding="utf-8")
    write_text(final, _INCLUDED.sub(lambda found: f"{found[1]}{{{folder}/", text))


def write_html(generated: Path, final: Path) -> None:
    """One HTML file with figures and style inside it."""
    _pandoc(
        generated,
        final,
        [
            "--to=html5",
            "--standalone",
            "--embed-resources",
            "--mathml",
            f"--css={SOURCES / 'style.css'}",
        ],
        images="svg",
    )


def _long_tables(folder: Path) -> list[str]:
    """Tables that may be longer than a page, a row counted as the lines of its longest text."""
    found = []
    for path in sorted(folder.glob("*.md")):
        rows = [line for line in read_table(path).splitlines() if line.startswith("|")]
        texts = [max(len(cell.strip()) for cell in row.split("|")) for row in [rows[0], *rows[2:]]]
        if sum(1 + length // _LETTERS_OF_A_CELL for length in texts) > _LINES_OF_A_PAGE:
            found.append(path.stem)
    return found


def _pandoc(generated: Path, final: Path, options: Sequence[str], images: str) -> None:
    """Run pandoc inside `generated`, so that the manuscript's relative paths hold."""
    import pypandoc

    with atomic_path(final.resolve()) as temporary:
        command = [
            pypandoc.get_pandoc_path(),
            "manuscript.md",
            "--from=markdown",
            f"--output={temporary}",
            f"--default-image-extension={images}",
            "--citeproc",
            f"--lua-filter={SOURCES / 'literal.lua'}",
            f"--bibliography={SOURCES / 'references.bib'}",
            *options,
        ]
        done = subprocess.run(command, cwd=generated, capture_output=True, text=True, check=False)
        if done.returncode:
            reason = " ".join(done.stderr.split())[:300]
            raise SamestepError(
                f"pandoc could not write {final}: {reason}; see {generated / 'manuscript.md'}"
            )
