"""What a probe finds."""

from __future__ import annotations

from dataclasses import dataclass

OK, MISSING, NOTE = "ok", "missing", "note"


@dataclass(frozen=True)
class Finding:
    """One line: whether it is there, what was seen, and how to get it where it is missing.

    A `note` is neither: a fact to know, or a probe that could not look.
    """

    status: str
    text: str
    fix: str = ""


def ok(text: str) -> Finding:
    """It is there."""
    return Finding(OK, text)


def missing(text: str, fix: str) -> Finding:
    """It is not there; `fix` says how to get it."""
    return Finding(MISSING, text, fix)


def note(text: str, fix: str = "") -> Finding:
    """A fact to know."""
    return Finding(NOTE, text, fix)
