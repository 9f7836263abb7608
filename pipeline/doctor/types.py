"""What a probe finds."""

from __future__ import annotations

from dataclasses import dataclass

OK, MISSING, NOTE, BROKEN = "ok", "missing", "note", "broken"


@dataclass(frozen=True)
class Finding:
    """One line: whether it is there, what was seen, and how to get it where it is missing.

    `broken`: a file of this checkout, such as a strategy or a study, cannot be used. A `note` is a
    fact to know, or a probe that failed.
    """

    status: str
    text: str
    fix: str = ""


def ok(text: str) -> Finding:
    """What was probed is there."""
    return Finding(OK, text)


def missing(text: str, fix: str) -> Finding:
    """What was probed is not there; `fix` says how to get it."""
    return Finding(MISSING, text, fix)


def note(text: str, fix: str = "") -> Finding:
    """A fact to know."""
    return Finding(NOTE, text, fix)


def broken(text: str, fix: str) -> Finding:
    """A file of this checkout cannot be used; `fix` says how to mend it."""
    return Finding(BROKEN, text, fix)
