"""One frame of text -> LaTeX (booktabs) and Markdown; one frame of numbers -> CSV.

A column that is empty, the same in every row or equal to another one is left out of the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from pipeline.files import write_text
from pipeline.fonts import printed
from pipeline.metrics.results import Results
from pipeline.strategies.base import SYMBOLS
from pipeline.tables import TABLES, rows, texts
from pipeline.text import NONE, latex, markdown, prose

# A column of long labels wraps beyond this, so that it does not squeeze the numbers; a column of
# sentences gets twice as much.
_WIDEST, _SENTENCES, _WIDEST_SENTENCES = 28, 150, 56
_NUMERIC = re.compile(rf"[-+.,\d\[\] e]*\d[-+.,\d\[\] e]*[<>]?|{NONE}|infinite|")
_FIXED = "\N{NO-BREAK SPACE}"
# What rows are about: it stands once, above rows that share it and all of these to its left.
_ONCE = ("Tolerance", "Cell", "Link", "Nodes")


def made(name: str, results: Results) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The raw numbers of a table and its text; raises ComparisonError where work is unequal."""
    declared = TABLES[name]
    results.require_equal_work(declared.compares, f"table {name}")
    raw: pd.DataFrame = getattr(rows, name)(results)
    return raw, getattr(texts, name, texts.shown)(raw, declared)


def write_table(name: str, results: Results, folder: Path) -> None:
    """Make a table of the metrics in all formats below `folder`."""
    write_all(*made(name, results), TABLES[name].caption, folder, name)


def to_latex(shown: pd.DataFrame, caption: str, label: str) -> str:
    """A floating table with booktabs rules; numbers are aligned right, text left."""
    # A column that holds sentences has to wrap.
    columns = "".join(
        "r" if right
        else r"p{0.36\linewidth}" if shown[name].astype(str).str.len().max() > _SENTENCES else "l"
        for name, right in zip(shown.columns, is_right(shown), strict=True)
    )  # fmt: skip
    escaped = shown.astype(str).map(latex).rename(columns=latex).reset_index(drop=True)
    return escaped.style.hide(axis="index").to_latex(
        column_format=columns, position_float="centering", hrules=True, caption=latex(caption),
        label=f"tab:{label}",
    )  # fmt: skip


def to_markdown(shown: pd.DataFrame) -> str:
    """A pipe table; the dashes of its rule give pandoc the relative widths of the columns."""
    rules, columns = [], []
    for name, right in zip(shown.columns, is_right(shown), strict=True):
        texts = [str(cell) for cell in shown[name]]
        # The head wraps, but for its longest word.
        longest = max(map(len, texts), default=0)
        word = max(map(len, str(name).split()), default=0)
        width = max(word, min(longest, _WIDEST_SENTENCES if longest > _SENTENCES else _WIDEST))
        rules.append("-" * (width + 1) + ":" if right else ":" + "-" * (width + 1))
        # A number and its interval stay in one line.
        blank = _FIXED if right else " "
        columns.append([markdown(str(name)), *(markdown(t).replace(" ", blank) for t in texts)])
    head, *body = [f"| {' | '.join(row)} |\n" for row in zip(*columns, strict=True)]
    return "".join([head, f"|{'|'.join(rules)}|\n", *body])


def printed_form(shown: pd.DataFrame, caption: str) -> tuple[pd.DataFrame, str]:
    """A table and its caption as shown: without columns that tell nothing, repeated cells blank.

    A column is left out where it is empty, and with it the sentence of the caption that begins with
    its name; constant; or equal to an earlier one, which the caption says. The first column stays,
    and the verdict, which a reader looks for, as does every column of a table of one row.
    """
    caption += legend(shown["Formula"]) if "Formula" in shown else ""
    fixed, alike, empty = dict[str, str](), dict[str, str](), list[str]()
    columns = {str(name): [str(value) for value in shown[name]] for name in shown}
    for place, (name, values) in enumerate(columns.items()):
        if len(shown) < 2 or place == 0 or name == "Verdict":
            continue
        same = [other for other in [*columns][1:place] if columns[other] == values]
        if set(values) <= {NONE, ""}:
            empty.append(name)
        elif len(set(values)) == 1:
            fixed[name] = values[0]
        elif same:
            alike[name] = same[0]
    untold = tuple(f"{name.partition(' [')[0]}:" for name in empty)
    sentences = [one for one in re.split(r"(?<=\.) ", caption) if not one.startswith(untold)]
    if fixed:
        sentences.append(f"In every row: {'; '.join(f'{k} {v}' for k, v in fixed.items())}.")
    sentences += [f"{name} is the same as {other} in every row." for name, other in alike.items()]
    table = shown.drop(columns=[*fixed, *alike, *empty])
    # A value stands again where one to the left of it is a new one.
    new = pd.Series(False, index=table.index)
    for name in (name for name in table if name in _ONCE):
        new = new | (table[name] != table[name].shift())
        table[name] = table[name].where(new, "")
    return table, " ".join(sentences)


def legend(formulas: Iterable[str]) -> str:
    """A sentence on the symbols in these formulas, or nothing."""
    lone = re.compile("(?<![A-Za-z'])[A-Za-z](?![A-Za-z])")
    used = set(lone.findall(" ".join(formulas)))
    # The meaning of one may name another.
    used |= {one for symbol in used & {*SYMBOLS} for one in lone.findall(SYMBOLS[symbol])}
    known = [f"{symbol}: {meaning}" for symbol, meaning in SYMBOLS.items() if symbol in used]
    return f" {'; '.join(known)}." if known else ""


def write_all(
    raw: pd.DataFrame, shown: pd.DataFrame, caption: str, folder: Path, name: str
) -> None:
    """Write `name`.tex, .md (from `shown`) and .csv (from `raw`) below `folder`.

    The Markdown ends with the caption as pandoc reads it, a paragraph that begins with a colon.
    LaTeX alone has words for what its fonts lack (`pipeline.fonts`).
    """
    shown, caption = printed_form(shown, caption)
    latex_cells = shown.map(lambda cell: printed(str(cell)))
    write_text(folder / f"{name}.tex", to_latex(latex_cells, caption, name))
    write_text(folder / f"{name}.md", f"{to_markdown(shown)}\n: {prose(caption)}\n")
    write_text(folder / f"{name}.csv", raw.to_csv(index=False, lineterminator="\n"))


def is_right(shown: pd.DataFrame) -> list[bool]:
    """Columns of numbers, which are aligned right."""
    return [
        len(shown) > 0 and all(_NUMERIC.fullmatch(str(cell)) for cell in shown[name])
        for name in shown.columns
    ]
