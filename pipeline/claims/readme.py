"""The verdicts as a short table between two marks of a Markdown file, such as the README."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.claims.counts import counted, outcome
from pipeline.claims.types import NOT_TESTABLE
from pipeline.errors import ClaimError
from pipeline.files import write_text
from pipeline.text import markdown


def marks(study: str) -> tuple[str, str]:
    """The lines between which the table of a study stands."""
    return f"<!-- verdicts of {study}: begin -->", f"<!-- verdicts of {study}: end -->"


def block(study: str, verdicts: Sequence[Mapping[str, Any]], runs: str) -> str:
    """A row for each claim that could be tested, and how many came out in each way.

    `runs` says how many runs the study has.
    """
    shown = [one for one in verdicts if outcome(one) != NOT_TESTABLE]
    rows = [
        f"| {markdown(one['sentence'])} | {outcome(one)} | {_effect(one)} | {_claimed(one)} | "
        f"{markdown('; '.join([one['scale'], *one['notes']]))} |"
        for one in shown
    ]
    head = [
        "| published sentence | verdict | effect, with its interval | claimed "
        "| scale, and what else differs |",
        "|---|---|---|---|---|",
    ]
    rest = f"The study `{study}`, {runs}. {counted(verdicts)}; its paper says why."
    return "\n".join([*(head + rows if rows else []), "", rest])


def update(path: Path, study: str, verdicts: Sequence[Mapping[str, Any]], runs: str) -> None:
    """Put the table between the marks of a file; raises ClaimError where it has none."""
    first, last = marks(study)
    before, begin, rest = path.read_text(encoding="utf-8").partition(first)
    _, end, after = rest.partition(last)
    if not begin or not end:
        raise ClaimError(f"{path} has no lines {first} and {last}; add them where the table is due")
    write_text(path, f"{before}{first}\n{block(study, verdicts, runs)}\n{last}{after}")


def _effect(one: Mapping[str, Any]) -> str:
    effect = one["effect"]
    if effect is None:
        return "-"
    return f"{effect['value']:.3g} [{effect['low']:.3g}, {effect['high']:.3g}]"


def _claimed(one: Mapping[str, Any]) -> str:
    return str(one["claimed"]["text"]) if one["claimed"] else "-"
