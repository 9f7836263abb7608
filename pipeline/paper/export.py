"""Manuscript -> PDF (typst) and LaTeX; the one date is the records'."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import unicodedata
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, time
from pathlib import Path
from typing import Any

from pipeline.errors import SamestepError
from pipeline.figures import catalogue
from pipeline.files import atomic_path, write_text
from pipeline.fonts import FAMILY, files, printed
from pipeline.paper import manuscript
from pipeline.paper.manuscript import BIBLIOGRAPHY, MANUSCRIPT, SOURCES, read_table

PRINTED = "printed.md"
"""The manuscript as PDF and LaTeX print it, which show what the fonts have (`pipeline.fonts`)."""

# Quotes as they are given: typst would turn an apostrophe at the start of a word around.
TYPST = "typst-smart"
# At the size of type in paper/template.typ, with room for a caption.
_LINES_OF_A_PAGE, _LINES_OF_A_SHORT_ONE, _LETTERS_OF_A_CELL = 46, 14, 40
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
_APPENDIX = "\n\\onecolumn\n"


def write_paper(
    numbers: Mapping[str, Any],
    figures: Path,
    tables: Path,
    generated: Path,
    out: Path,
    file: str = MANUSCRIPT,
    captions: Mapping[str, str] = catalogue.captions,
) -> None:
    """Write paper.pdf and paper.tex to `out`, and all that they are made from to `generated`.

    `file` is the manuscript in the folder `paper`, `captions` are those of its figures.
    """
    for folder, name, kinds in (
        (figures, "figures", (".svg", ".pdf")),
        (tables, "tables", (".md", ".tex")),
    ):
        # Exactly these files: none of an earlier version of the study stays.
        shutil.rmtree(generated / name, ignore_errors=True)
        for path in sorted(folder.iterdir()):
            if path.suffix in kinds and not path.name.startswith("."):
                with atomic_path(generated / name / path.name) as temporary:
                    shutil.copyfile(path, temporary)
    write_text(generated / "numbers.json", json.dumps(numbers, indent=1, ensure_ascii=False) + "\n")
    # Read back, so that the text can hold nothing that is not in the file.
    stored = json.loads((generated / "numbers.json").read_text(encoding="utf-8"))
    text = manuscript.render(manuscript.source(file), stored, generated / "tables", captions, file)
    write_text(generated / MANUSCRIPT, text)
    write_text(generated / PRINTED, printed(text))
    write_pdf(generated, out / "paper.pdf", date.fromisoformat(stored["date"]["iso"]))
    write_latex(generated, out / "paper.tex", figures)


def write_pdf(generated: Path, final: Path, day: date) -> None:
    """Compile generated/printed.md to `final`, a PDF/UA-1; equal inputs give equal bytes.

    Only fonts of packages are used, so that the pages do not depend on what is installed.
    """
    import typst

    source = generated / "manuscript.typ"
    options = [
        f"--to={TYPST}",
        # A wrapped line could begin with what is a list or a heading there.
        "--wrap=none",
        "--columns=100000",  # no table gets widths of its own: typst fits the columns to the page
        f"--template={SOURCES / 'template.typ'}",
        f"--variable=fixed-date:datetime(year: {day.year}, month: {day.month}, day: {day.day})",
    ]
    for path in sorted((generated / "tables").glob("*.md")):
        # At most so many lines in print: a row counts as the lines of its longest text.
        rows = [line for line in read_table(path).splitlines() if line.startswith("|")]
        texts = [max(len(cell.strip()) for cell in row.split("|")) for row in [rows[0], *rows[2:]]]
        lines = sum(1 + length // _LETTERS_OF_A_CELL for length in texts)
        if lines > _LINES_OF_A_PAGE:
            options.append(f"--variable=long-table:{path.stem}")
        if lines <= _LINES_OF_A_SHORT_ONE:
            options.append(f"--variable=short-table:{path.stem}")
    write_text(source, converted(generated / PRINTED, "svg", options))
    noon = datetime.combine(day, time(12), UTC)
    folders = [str(path.parent) for path in files()]
    compiler = typst.Compiler(root=str(generated), ignore_system_fonts=True, font_paths=folders)
    given: dict[str, Any] = {"input": str(source), "format": "pdf", "timestamp": noon}
    try:
        try:
            # typst refuses what it can see to break PDF/UA-1, such as a figure without a text.
            pdf = compiler.compile(**given, pdf_standards=["ua-1"])
        except typst.TypstError as error:
            # A mark may have a glyph and none on its letter.
            if "could not be displayed with font" not in str(error):
                raise
            reason = f"as a character has no glyph: {' '.join(str(error).split())[:160]}"
            print(f"note: the PDF is no PDF/UA-1, {reason}", file=sys.stderr)
            pdf = compiler.compile(**given)
    except typst.TypstError as error:
        message = " ".join(str(error).split())[:300]
        raise SamestepError(
            f"{source}: typst could not compile it ({message}); fix paper/template.typ or the "
            "manuscript"
        ) from error
    with atomic_path(final) as temporary:
        temporary.write_bytes(pdf if isinstance(pdf, bytes) else b"".join(pdf or []))


def write_latex(generated: Path, final: Path, figures: Path) -> None:
    """A LaTeX file for submission that includes the figures as PDF, relative to itself.

    Its class can be that of a conference (paper/template.tex), also one of two columns.
    """
    source, options = generated / PRINTED, ["--to=latex", f"--template={SOURCES / 'template.tex'}"]
    # East Asian wide, as the letters of that font are (emoji are, too).
    letters = source.read_text(encoding="utf-8")
    if any(unicodedata.east_asian_width(letter) in ("W", "F") for letter in letters):
        options.append(f"--variable=cjk:{FAMILY}")
    folder = Path(os.path.relpath(figures, final.parent)).as_posix()
    text = converted(source, "pdf", options)
    text = _INCLUDED.sub(lambda match: f"{match[1]}{{{folder}/", text)
    # Figures, and tables before the appendix, are floats over both columns where there are two:
    # `longtable` breaks over pages, which only one column can; the appendix has one.
    body, appendix, rest = text.partition(_APPENDIX)
    body = _LONG_TABLE.sub(
        r"\\begin{table*}\n\g<caption>\n\n\\centering\\small\n\\begin{tabular}\g<columns>\n"
        r"\g<head>\g<rows>\\bottomrule\n\\end{tabular}\n\\end{table*}",
        body,
    )
    for kind in ("begin", "end"):
        body = body.replace(f"\\{kind}{{figure}}", f"\\{kind}{{figure*}}")
    write_text(final, body + appendix + rest)


def converted(source: Path, images: str, options: Sequence[str]) -> str:
    """A manuscript in Markdown as another format, with its citations and pictures of one kind.

    Its relative paths start in its folder. Raises SamestepError.
    """
    import pypandoc

    command = [
        # that of the lock: `get_pandoc_path` takes a newer one from the caller's PATH
        str(Path(pypandoc.__file__).parent / "files" / "pandoc"),
        source.name,
        "--from=markdown",
        f"--default-image-extension={images}",
        "--citeproc",
        f"--lua-filter={SOURCES / 'literal.lua'}",
        f"--bibliography={BIBLIOGRAPHY}",
        *options,
    ]
    # Names of files may hold any letter, and a person's own templates, citation style and
    # abbreviations lie below HOME or XDG_DATA_HOME.
    own = {"LC_ALL": "C.UTF-8", "HOME": str(SOURCES)}
    done = subprocess.run(
        command, cwd=source.parent, env=own, capture_output=True, encoding="utf-8",
        errors="replace", check=False,
    )  # fmt: skip
    if done.returncode:
        reason = " ".join(done.stderr.split())[:300]
        raise SamestepError(f"pandoc could not convert {source}: {reason}; correct it")
    return done.stdout
