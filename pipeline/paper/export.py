"""Manuscript -> PDF (typst), LaTeX and self-contained HTML; the one date is the records'."""

from __future__ import annotations

import base64
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

from pipeline.errors import SamestepError
from pipeline.figures import NARROW
from pipeline.figures.lettering import as_text
from pipeline.files import atomic_path, write_text
from pipeline.fonts import FAMILY, files, is_wide
from pipeline.paper.manuscript import SOURCES, read_table

MANUSCRIPT, PRINTED = "manuscript.md", "printed.md"
"""What HTML is made from, and PDF and LaTeX: these show what the fonts have (`pipeline.fonts`)."""

CUES = Path(__file__).parents[1] / "page" / "cues.js"
# Quotes as they are given: typst would turn an apostrophe at the start of a word around.
TYPST = "typst-smart"
# Figures of which the words are text, as the PDF embeds a font; a browser may not have it.
_WORDED = ".words"
# At the size of type in paper/template.typ, with room for a caption.
_LINES_OF_A_PAGE, _LINES_OF_A_SHORT_ONE, _LETTERS_OF_A_CELL = 46, 14, 40
_LINES_BELOW_A_FIGURE = 9
"""Rows with which the summary still fits below the figure of the first page."""
# The command alone: a title may say `{figures/` too.
_INCLUDED = re.compile(r"(\\includegraphics(?:\[[^\n]*\])?)\{figures/")
# A table as pandoc writes it: columns, caption, head, rows. No cell can hold such a command, since
# pandoc escapes every backslash of a text.
_LONG_TABLE = re.compile(
    r"\\begin\{longtable\}\[\](?P<columns>\{@\{\}.*?@\{\}\})\n"
    r"(?P<caption>\\caption.*?)\\tabularnewline\n(?P<head>\\toprule.*?)\\endfirsthead\n"
    r".*?\\endlastfoot\n(?P<rows>.*?)\\end\{longtable\}",
    re.DOTALL,
)
_FIGURE = re.compile(r'(?P<before><figure id="fig:(?P<name>\w+)"[^>]*>\s*)(?P<image><img [^>]*>)')
# A table as pandoc writes it in HTML, which escapes every such sign of a text.
_CAPTIONED = re.compile(
    r'<table id="(?P<name>tbl:\w+)"(?P<style>[^>]*)>\s*<caption>(?P<caption>.*?)</caption>'
    r"(?P<rows>.*?)</table>",
    re.DOTALL,
)
_APPENDIX = "\n\\onecolumn\n"


def write_pdf(generated: Path, final: Path, date: Mapping[str, Any]) -> None:
    """Compile generated/printed.md to `final`, a PDF/UA-1; equal inputs give equal bytes.

    Only fonts of packages are used, so that the pages do not depend on what is installed.
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
    for name, lines in _table_lines(generated / "tables").items():
        if lines > _LINES_OF_A_PAGE:
            options.append(f"--variable=long-table:{name}")
        elif name == "summary" and lines > _LINES_BELOW_A_FIGURE:
            options.append(f"--variable=floating-table:{name}")
        if lines <= _LINES_OF_A_SHORT_ONE:
            options.append(f"--variable=short-table:{name}")
    for drawing in sorted((generated / "figures").glob("*.svg")):
        if not drawing.stem.endswith((NARROW, _WORDED)):
            text = as_text(drawing.read_text(encoding="utf-8"))
            write_text(drawing.with_name(f"{drawing.stem}{_WORDED}.svg"), text)
    _pandoc(generated / PRINTED, source, options, images=f"{_WORDED.strip('.')}.svg")
    noon = datetime(date["year"], date["month"], date["day"], 12, tzinfo=UTC)
    compiler = typst.Compiler(
        root=str(generated),
        ignore_system_fonts=True,
        font_paths=[str(path.parent) for path in files()],
    )
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
    """The PDF, which claims no standard where a character has no glyph after all; that is said.

    A mark may have one and none on its letter. Raises TypstError for all else.
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
    """A LaTeX file for submission that includes the figures as PDF, relative to itself.

    Its class can be that of a conference (paper/template.tex), also one of two columns.
    """
    options = ["--to=latex", f"--template={SOURCES / 'template.tex'}"]
    if any(is_wide(c) for c in (generated / PRINTED).read_text(encoding="utf-8")):
        options.append(f"--variable=cjk:{FAMILY}")
    _pandoc(generated / PRINTED, final, options, images="pdf")
    folder = Path(os.path.relpath(figures, final.parent)).as_posix()
    text = final.read_text(encoding="utf-8")
    text = _INCLUDED.sub(lambda found: f"{found[1]}{{{folder}/", text)
    write_text(final, _floating(text))


def _floating(latex: str) -> str:
    """Figures, and tables before the appendix, as floats over both columns where there are two.

    `longtable` breaks over pages, which only one column can; the appendix has one.
    """
    body, appendix, rest = latex.partition(_APPENDIX)
    body = _LONG_TABLE.sub(
        r"\\begin{table*}\n\g<caption>\n\n\\centering\\small\n\\begin{tabular}\g<columns>\n"
        r"\g<head>\g<rows>\\bottomrule\n\\end{tabular}\n\\end{table*}",
        body,
    )
    for kind in ("begin", "end"):
        body = body.replace(f"\\{kind}{{figure}}", f"\\{kind}{{figure*}}")
    return body + appendix + rest


def write_html(generated: Path, final: Path) -> None:
    """One HTML file with figures, style and the cues of its tables inside it."""
    _pandoc(
        generated / MANUSCRIPT,
        final,
        [
            "--to=html5",
            "--standalone",
            "--embed-resources",
            "--mathml",
            "--variable=include-before:<main>",
            "--variable=include-after:</main>",
            f"--css={SOURCES / 'style.css'}",
        ],
        images="svg",
    )
    text = final.read_text(encoding="utf-8")
    text = _FIGURE.sub(lambda found: _stacked(found, generated / "figures"), text)
    write_text(final, _scrolling(text))


def _scrolling(page: str) -> str:
    """`page` with every table in a box that scrolls, which a keyboard reaches and a cue names.

    Captions stand outside of the boxes; the script that measures boxes is that of the report.
    """
    number = count(1)

    def box(table: re.Match[str]) -> str:
        return (
            f'<figure class="table" id="{table["name"]}">\n'
            f"<figcaption>{table['caption']}</figcaption>\n"
            '<p class="cue" aria-hidden="true">The table is wider than the screen: scroll it '
            "sideways.</p>\n"
            f'<div class="scroll" tabindex="0" role="region" aria-label="Table {next(number)}">\n'
            f"<table{table['style']}>{table['rows']}</table>\n</div>\n</figure>"
        )

    before, end, after = _CAPTIONED.sub(box, page).rpartition("</body>")
    script = CUES.read_text(encoding="utf-8")
    return f"{before}<script>\n{script}</script>\n{end}{after}"


def _stacked(figure: re.Match[str], folder: Path) -> str:
    """A figure of the page, with its drawing for a narrow screen where the results have one."""
    narrow = folder / f"{figure['name']}{NARROW}.svg"
    if not narrow.is_file():
        return figure[0]
    drawing = base64.b64encode(narrow.read_bytes()).decode("ascii")
    return (
        f'{figure["before"]}<picture><source media="screen and (max-width: 46rem)" '
        f'srcset="data:image/svg+xml;base64,{drawing}">{figure["image"]}</picture>'
    )


def _table_lines(folder: Path) -> dict[str, int]:
    """At most so many lines of each table, a row counted as the lines of its longest text."""
    found = {}
    for path in sorted(folder.glob("*.md")):
        rows = [line for line in read_table(path).splitlines() if line.startswith("|")]
        texts = [max(len(cell.strip()) for cell in row.split("|")) for row in [rows[0], *rows[2:]]]
        found[path.stem] = sum(1 + length // _LETTERS_OF_A_CELL for length in texts)
    return found


def _pandoc(source: Path, final: Path, options: Sequence[str], images: str) -> None:
    """Run pandoc in the folder of the Markdown file `source`, where its relative paths start."""
    import pypandoc

    with atomic_path(final.resolve()) as temporary:
        command = [
            pypandoc.get_pandoc_path(),
            source.name,
            "--from=markdown",
            f"--output={temporary}",
            f"--default-image-extension={images}",
            "--citeproc",
            f"--lua-filter={SOURCES / 'literal.lua'}",
            f"--bibliography={SOURCES / 'references.bib'}",
            *options,
        ]
        done = subprocess.run(
            command,
            cwd=source.parent,
            env=os.environ | {"LC_ALL": "C.UTF-8"},  # names of files may hold any letter
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            check=False,
        )
        if done.returncode:
            reason = " ".join(done.stderr.split())[:300]
            raise SamestepError(f"pandoc could not write {final}: {reason}; see {source}")
