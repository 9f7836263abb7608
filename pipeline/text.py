"""Data that is text (titles, labels, sentences, reasons) -> a format in which it reads the same.

A title may hold any character; in no format may one of them be markup. Each format has one door:

- Markdown for pandoc: `markdown`, which the manuscript calls by itself, and `markdown_code`
- LaTeX of the tables: `latex`
- HTML: the standard library's `html.escape` and Jinja2's `autoescape`
- figures: `text.parse_math` off in `pipeline/figures/samestep.mplstyle`
- characters that the fonts of figures and PDF lack: `pipeline/fonts.py`
- Snakemake: `params` are functions, whose values it does not format; `workflow/report/workflow.rst`
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable, Sequence

NONE = "\N{EN DASH}"
"""A value that there is none of, in tables and figures."""

# Blanks, line breaks and control characters; a no-break space stays what it is.
_BLANKS = re.compile("[\x00-\x20\x7f-\x9f\u2028\u2029\ufffe\uffff]+")
# Control characters that are no blanks, halves of pairs, what turns the direction of what follows
# and so shows a text that is not there (right-to-left scripts need none of it), and code points
# that Unicode gives to no character for ever, of which HTML makes an error.
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069\ufdd0-\ufdef"
    + "".join(chr(plane << 16 | last) for plane in range(17) for last in (0xFFFE, 0xFFFF))
    + "]"
)
# What is markup wherever it stands, and quotes, which pandoc would set as the language has them.
_MARKUP = r"[\\`*_\[\]{}<>|$@^~#&\"'\u2018\u2019\u201c\u201d]"
# Dots and hyphens in a row are an ellipsis and dashes.
_ROWS = r"\.(?=\.)|(?<=\.)\.|-(?=-)|(?<=-)-"
# At the start a block could begin: a list, a definition, a line under a heading, a title.
_STARTS = r"(?:^|(?<=^ ))(?:[:=%]|[-+](?![\d.]))"
_MARKDOWN = re.compile(f"{_MARKUP}|{_ROWS}|{_STARTS}")
_NUMBERED = re.compile(r"^( ?\(?\w+)([.)])(?= |$)")

_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", "`": r"\textasciigrave{}",
    # A straight quote, also where a language makes the character a command.
    '"': r"\symbol{34}",
    # A row that began with one of these would give an option to the end of the row above.
    "[": "{[}", "]": "{]}", "*": "{*}",
    "\N{EN DASH}": "--",
}  # fmt: skip
# Characters that LaTeX joins to another one.
_JOINED = re.compile(r"([-',])(?=\1)")


def align(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns of equal width under a row of headings: words to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    named = ("cell", "layout", "series", "setting", "chosen", "fastest other")
    words = [heading in named for heading in rows[0]]
    return [
        "  ".join(
            cell.ljust(width) if is_word else cell.rjust(width)
            for cell, width, is_word in zip(row, widths, words, strict=True)
        ).rstrip()
        for row in rows
    ]


def pipe_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown, of headings and cells that are Markdown already."""
    first, *others = ["| " + " | ".join(row) + " |" for row in (headings, *rows)]
    return "\n".join([first, "|---" * len(headings) + "|", *others])


def one_line(text: str) -> str:
    """`text` with each run of blanks, line breaks and control characters as one blank."""
    return _BLANKS.sub(" ", text)


# Letters and symbols by their category, of which nothing is seen: fillers of Hangul, empty Braille.
_EMPTY = frozenset("\u115f\u1160\u3164\uffa0\u2800")


def unprintable(text: str) -> str:
    """The first character that no format can hold; '' without any."""
    match = _UNPRINTABLE.search(text)
    return match[0] if match else ""


def is_visible(text: str) -> bool:
    """True where a reader sees any of it: not blanks, control characters and marks alone."""
    return any(_shows(character, "ZCM") for character in text)


def seen(text: str) -> str:
    """The visible part of a text: equal for two that look alike because of what nobody sees.

    Invisible characters are dropped, runs of blanks are one, and letters are composed.
    """
    words = "".join(" " if c.isspace() else c for c in text if c.isspace() or _shows(c, "C"))
    return " ".join(unicodedata.normalize("NFC", words).split())


def _shows(character: str, hidden: str) -> bool:
    return unicodedata.category(character)[0] not in hidden and character not in _EMPTY


def markdown(text: str) -> str:
    """`text` as Markdown, in a paragraph, at its start or in a cell of a pipe table."""
    escaped = _MARKDOWN.sub(lambda match: f"\\{match[0]}", one_line(text))
    return _NUMBERED.sub(r"\1\\\2", escaped)


def markdown_code(text: str) -> str:
    """`text` as a code span of Markdown; `-` for an empty one, which Markdown cannot write."""
    plain = one_line(text).strip() or "-"
    fence = "`" * (1 + max(map(len, re.findall("`+", plain)), default=0))
    blank = " " if "`" in plain else ""
    return f"{fence}{blank}{plain}{blank}{fence}"


def prose(text: str) -> str:
    """A caption of ours as Markdown: no markup in it, but its quotes are set as the text's are."""
    return markdown(text).replace("\\'", "'")


def latex(text: str) -> str:
    """`text` as LaTeX, in a paragraph or in a cell of a table."""
    parts = (_LATEX.get(character, character) for character in _JOINED.sub("\\1\0", one_line(text)))
    return "".join(parts).replace("\0", "{}")


def plural(count: int, noun: str) -> str:
    """`1 node`, `2 nodes`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def parameters(count: float) -> str:
    """`0.17 M parameters`, `530 B parameters`."""
    return f"{f'{count / 1e9:.4g} B' if count >= 1e9 else f'{count / 1e6:.3g} M'} parameters"


def numbered(counts: Sequence[int], noun: str) -> str:
    """`1 node`, `2 nodes`, `1, 2 and 4 nodes`."""
    return f"{listed(counts)} {noun}{'' if [*counts] == [1] else 's'}"


def listed(items: Iterable[object]) -> str:
    """`a`, `a and b`, `a, b and c`; `a; b, x and c` where an item has a comma itself."""
    words = [str(item) for item in items]
    between = "; " if any(", " in word for word in words) else ", "
    return " and ".join([between.join(words[:-1]), words[-1]] if len(words) > 1 else words)


FEW = 3


def few(items: Iterable[object]) -> str:
    """As `listed`; of over four items the first three and the number of the others."""
    words = [*items]
    more = [f"{len(words) - FEW} more"]
    return listed(words if len(words) <= FEW + 1 else [*words[:FEW], *more])


def significant(value: float, digits: int = 3) -> str:
    """`value` to so many significant digits, without an exponent, thousands grouped."""
    if not math.isfinite(value):
        return NONE if math.isnan(value) else "infinite"
    if value == 0:
        return "0"
    decimals = max(digits - 1 - math.floor(math.log10(abs(value))), 0)
    return f"{value:,.{decimals}f}"
