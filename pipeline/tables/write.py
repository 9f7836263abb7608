"""One frame of text -> LaTeX (booktabs), Markdown and HTML; one frame of numbers -> CSV."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from pipeline.files import write_text
from pipeline.metrics.format import NONE
from pipeline.text import latex, markdown, one_line

# A column of long labels wraps beyond this, so that it does not squeeze the numbers; a column of
# sentences gets twice as much.
_WIDEST, _SENTENCES, _WIDEST_SENTENCES = 28, 150, 56
_STYLE = (
    "body{font:14px system-ui,sans-serif;margin:1rem}table{border-collapse:collapse}"
    "caption{text-align:left;max-width:60rem;margin-bottom:.6rem}th{border-bottom:1px solid}"
    "th,td{padding:.2rem .6rem;vertical-align:top}thead,tbody{border-block:2px solid}"
)
_NUMERIC = re.compile(rf"[-+.,\d\[\] e]*\d[-+.,\d\[\] e]*|{NONE}|infinite")


def to_latex(shown: pd.DataFrame, caption: str, label: str) -> str:
    """A floating table with booktabs rules; numbers are aligned right, text left."""
    columns = "".join(
        "r" if right else r"p{0.36\linewidth}" if _is_long(shown[name]) else "l"
        for name, right in zip(shown.columns, _is_right(shown), strict=True)
    )
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{latex(caption)}}}",
        rf"\label{{tab:{label}}}",
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        _latex_row(list(shown.columns)),
        r"\midrule",
        *(_latex_row(row) for row in shown.itertuples(index=False)),
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def to_markdown(shown: pd.DataFrame) -> str:
    """A pipe table; the dashes of its rule give pandoc the relative widths of the columns."""
    body = [[markdown(str(cell)) for cell in row] for row in shown.itertuples(index=False)]
    head = [markdown(str(name)) for name in shown.columns]
    widths = [max(len(row[i]) for row in [head, *body]) for i in range(len(head))]
    rule = [
        f"{'' if right else ':'}{'-' * (_shown_width(width) + 1)}{':' if right else ''}"
        for width, right in zip(widths, _is_right(shown), strict=True)
    ]
    lines = [_markdown_row(head, widths), "|" + "|".join(rule) + "|"]
    return "\n".join([*lines, *(_markdown_row(row, widths) for row in body)]) + "\n"


def _shown_width(width: int) -> int:
    return min(width, _WIDEST_SENTENCES if width > _SENTENCES else _WIDEST)


def to_html(shown: pd.DataFrame, caption: str) -> str:
    """A small page of its own, for the HTML report of the workflow."""
    align = ["right" if right else "left" for right in _is_right(shown)]

    def row(cells: Sequence[object], tag: str) -> str:
        return "".join(
            f'<{tag} style="text-align:{side}">{html.escape(one_line(str(cell)))}</{tag}>'
            for cell, side in zip(cells, align, strict=True)
        )

    body = "\n".join(
        f"<tr>{row(list(cells), 'td')}</tr>" for cells in shown.itertuples(index=False)
    )
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><style>{_STYLE}</style>'
        f"</head><body>\n<table><caption>{html.escape(caption)}</caption>\n"
        f"<thead><tr>{row(list(shown.columns), 'th')}</tr></thead>\n"
        f"<tbody>\n{body}\n</tbody></table>\n</body></html>\n"
    )


def once(shown: pd.DataFrame, column: str) -> pd.DataFrame:
    """`shown` with a repeated value of `column` left blank below its first row."""
    return shown.assign(**{column: shown[column].where(shown[column] != shown[column].shift(), "")})


def write_all(
    raw: pd.DataFrame, shown: pd.DataFrame, caption: str, folder: Path, name: str
) -> None:
    """Write `name`.tex, .md, .html (from `shown`) and .csv (from `raw`) below `folder`."""
    if "Cell" in shown:
        shown = once(shown, "Cell")
    write_text(folder / f"{name}.tex", to_latex(shown, caption, name))
    write_text(folder / f"{name}.md", to_markdown(shown))
    write_text(folder / f"{name}.html", to_html(shown, caption))
    write_text(folder / f"{name}.csv", raw.to_csv(index=False, lineterminator="\n"))


def _is_right(shown: pd.DataFrame) -> list[bool]:
    return [
        len(shown) > 0 and all(_NUMERIC.fullmatch(str(cell)) for cell in shown[name])
        for name in shown.columns
    ]


def _is_long(column: pd.Series) -> bool:
    """Whether a column holds sentences, which have to wrap."""
    return any(len(str(cell)) > _SENTENCES for cell in column)


def _latex_row(cells: Sequence[object]) -> str:
    return " & ".join(latex(str(cell)) for cell in cells) + r" \\"


def _markdown_row(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
    return "| " + " | ".join(padded) + " |"
