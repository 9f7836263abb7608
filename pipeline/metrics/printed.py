"""What figures, PDF and LaTeX call a cell whose label has a character that no font at hand has.

Such a cell goes by its short name there, which is plain letters. Whatever a browser shows keeps the
label: it has fonts of its own.
"""

from __future__ import annotations

import pandas as pd

from pipeline import fonts
from pipeline.metrics.select import cells, records
from pipeline.text import markdown

_TEXTS = ("label", "arm_label", "reason")


def short_names(table: pd.DataFrame) -> dict[str, str]:
    """The short name of each cell that goes by it, by its label as the study has it.

    Where another cell has just that label, the two would be one to a reader: it is left out.
    """
    own = {}
    for row in records(cells(table).drop_duplicates("arm")):
        added = "" if row["precision"] == "fp32" else f" [{row['precision_ran']}]"
        own[row["arm_label"].removesuffix(added)] = row["arm"]
    return {
        label: name for label, name in own.items() if fonts.missing([label]) and name not in own
    }


def printable(table: pd.DataFrame) -> pd.DataFrame:
    """`table` with what figures show in its labels and reasons; itself where nothing changes."""
    texts = {text for name in _TEXTS for text in table[name].dropna().unique()}
    if all(map(str.isascii, texts)):
        return table
    names = short_names(table)
    shown = {text: fonts.printed(text, names) for text in texts}
    return table.assign(
        **{name: table[name].map(shown).astype(table[name].dtype) for name in _TEXTS}
    )


def printable_markdown(document: str, table: pd.DataFrame) -> str:
    """The Markdown `document`, made by `markdown` from texts of `table`, for PDF and LaTeX."""
    # What begins a text is escaped in another way than what stands inside of one.
    forms = {
        form: name
        for label, name in short_names(table).items()
        for form in (markdown(label), markdown(f"x{label}")[1:])
    }
    return fonts.printed(document, forms)
