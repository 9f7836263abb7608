"""Fill `paper/manuscript.md`: numbers, figures, tables and references to them."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined, Template
from jinja2.exceptions import TemplateError

from pipeline import figures
from pipeline.documents import MAX_MADE_BYTES, read_text
from pipeline.errors import SamestepError
from pipeline.text import markdown, markdown_code, prose

SOURCES = Path(__file__).parents[2] / "paper"
MANUSCRIPT, BIBLIOGRAPHY = "manuscript.md", SOURCES / "references.bib"
_FIXED = "\N{NO-BREAK SPACE}"
_UNITS = "%|ms|s|MiB|GiB|Mbit/s|Gbit/s|nodes?|GFLOP/s"
# Between a number and its unit or interval, and inside of the latter, no line ends.
_BREAKABLE = re.compile(
    rf"(?<=\d) (?=(?:{_UNITS})(?![\w/]))|(?<=[\d%]) (?=\\?\[\d[\d.,]*, [\d.,]+\\?\])"
    rf"|(?<=\d,) (?=[\d.,]+\\?\])|(?<=Figure) (?=\d)|(?<=Table) (?=\d)"
)


class _Markdown(str):
    """Text that is Markdown already; everything else that the template puts in is escaped."""


def source(file: str = MANUSCRIPT) -> str:
    """The text of `paper/manuscript.md`, or of another manuscript beside it."""
    return (SOURCES / file).read_text(encoding="utf-8")


def render(
    source: str,
    numbers: Mapping[str, Any],
    table_folder: Path,
    captions: Mapping[str, str] = figures.catalogue.captions,
    file: str = MANUSCRIPT,
) -> str:
    """The manuscript as Markdown for pandoc; raises SamestepError on an unknown name.

    `captions` are those of the figures, and errors name the `file` in the folder `paper`.

    The template gets the keys of `numbers`, `other_figures` (those of this study that it does not
    name itself) and five functions: `figure(name)`, `table(name)`,
    `caption(name, text)` below a table that stands in the template itself, and `see_figure(name)`,
    `see_table(name)` for the numbered reference in the text. Every value is escaped, so that no
    title or label is read as markup; `| code` makes it a code span, and `| as_is` is for what is
    Markdown already and for code blocks.
    """
    figures_shown, tables_shown = list[str](), list[str]()
    drawn = {path.stem for path in (table_folder.parent / "figures").glob("*.svg")}
    others = [one for one in captions if f'figure("{one}")' not in source]
    given = {**numbers, "other_figures": [one for one in others if one in drawn]}
    try:
        template = _template(source)
        # A section may be left out, so a first pass finds what is shown, and in which order.
        template.render(
            **given,
            figure=figures_shown.append,
            table=tables_shown.append,
            caption=lambda name, text: tables_shown.append(name),
            see_figure=str,
            see_table=str,
        )
        text = template.render(
            **given,
            figure=lambda name: _Markdown(_figure(captions, name)),
            # It ends with its caption, which says what was left out; the name is what refers to it.
            table=lambda name: _Markdown(
                f"{read_table(table_folder / f'{name}.md').rstrip()} {{#tbl:{name}}}\n"
            ),
            # It makes the table above it a numbered one.
            caption=lambda name, text: _Markdown(f": {text} {{#tbl:{name}}}\n"),
            see_figure=lambda name: f"Figure {_place(figures_shown, name)}",
            see_table=lambda name: f"Table {_place(tables_shown, name)}",
        )
        # Code is copied, and keeps its spaces.
        parts = text.split("```")
        return "```".join(
            part if place % 2 else _BREAKABLE.sub(_FIXED, part) for place, part in enumerate(parts)
        )
    except TemplateError as error:
        line = getattr(error, "lineno", None)
        where = f"paper/{file}:{line}" if line else f"paper/{file}"
        of = "numbers" if file == MANUSCRIPT else Path(file).stem
        raise SamestepError(
            f"{where}: {error}; every number comes from pipeline/paper/{of}.py, name one of it"
        ) from error


@cache
def _template(source: str) -> Template:
    def escaped(value: object) -> str:
        return value if isinstance(value, _Markdown) else markdown(str(value))

    environment = Environment(  # noqa: S701
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, finalize=escaped
    )
    environment.filters["code"] = lambda value: _Markdown(markdown_code(str(value)))
    environment.filters["as_is"] = _Markdown
    return environment.from_string(source)


def _known(names: Collection[str], name: str, what: str) -> str:
    if name not in names:
        raise SamestepError(f"the manuscript {what} {name!r}; use one of {', '.join(names)}")
    return name


def _place(shown: list[str], name: str) -> int:
    order = list(dict.fromkeys(shown))
    return order.index(_known(order, name, "refers to, but does not show,")) + 1


def _figure(captions: Mapping[str, str], name: str) -> str:
    caption = captions[_known(captions, name, "shows the unknown figure")]
    title = name.replace("_", " ").capitalize()
    read_aloud = f"{title}: {caption.split('. ')[0]}".replace("\\", "\\\\").replace('"', '\\"')
    return f'![{prose(caption)}](figures/{name}){{#fig:{name} alt="{read_aloud}"}}\n'


def read_table(path: Path) -> str:
    """The Markdown of a table that `python -m pipeline table` wrote; raises SamestepError."""
    again = f"run `python -m pipeline table {path.stem}` first"
    text = read_text(path, "table", SamestepError, again, MAX_MADE_BYTES)
    if not any(line.startswith("|") for line in text.splitlines()):
        raise SamestepError(f"{path} holds no table; {again}")
    return text
