"""One file per table; `python -m pipeline table NAME` writes it as LaTeX, Markdown, CSV, HTML.

A table is a sibling file with a module-level `CAPTION`, `COMPARES`, `build(table) -> DataFrame` of
raw numbers (the CSV) and `show(frame) -> DataFrame` of text (all other formats). A table of claims
says `NEEDS = "verdicts"` and gets these too, `build(table, verdicts)`.
"""

from pipeline.literals import literals

__all__ = ["captions", "names", "needing_verdicts"]


def captions() -> dict[str, str]:
    """Caption of every table by name, in alphabetical order."""
    return literals(__path__[0], "CAPTION")


def names() -> list[str]:
    """Names of all tables."""
    return list(captions())


def needing_verdicts() -> list[str]:
    """Names of the tables that are about claims; a study without claims has none of them."""
    return [name for name, needs in literals(__path__[0], "NEEDS").items() if needs == "verdicts"]
