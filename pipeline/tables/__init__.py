"""One file per table; `python -m pipeline table NAME` writes it as LaTeX, Markdown, CSV, HTML.

A table is a sibling file with a module-level `CAPTION`, `COMPARES`, `build(table) -> DataFrame` of
raw numbers (the CSV) and `show(frame) -> DataFrame` of text (all other formats).
"""

from pipeline.literals import literals

__all__ = ["captions", "names"]


def captions() -> dict[str, str]:
    """Caption of every table by name, in alphabetical order."""
    return literals(__path__[0], "CAPTION")


def names() -> list[str]:
    """Names of all tables."""
    return list(captions())
