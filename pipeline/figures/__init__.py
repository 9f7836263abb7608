"""One file per figure; `python -m pipeline figure NAME` draws it as PDF, SVG and PNG.

A figure is a sibling file with a module-level `CAPTION` (a plain string), `COMPARES` (the fields
of equal work that it is about) and `draw(table) -> Figure`; one on claims says `NEEDS = "verdicts"`
and draws these too, `draw(table, verdicts)`. The Snakefile asks for `captions()` when it is parsed,
so the files are read, not imported: no seaborn for a dry run.
"""

from pipeline.literals import literals

__all__ = ["captions", "names", "needing_verdicts"]


def captions() -> dict[str, str]:
    """Caption of every figure by name, in alphabetical order."""
    return literals(__path__[0], "CAPTION")


def names() -> list[str]:
    """Names of all figures."""
    return list(captions())


def needing_verdicts() -> list[str]:
    """Names of the figures that are about claims; a study without claims has none of them."""
    return [name for name, needs in literals(__path__[0], "NEEDS").items() if needs == "verdicts"]
