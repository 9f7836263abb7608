"""The verdicts as a short table between two marks of a Markdown file, such as the README."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from pipeline.claims.types import NOT_TESTABLE
from pipeline.claims.write import counted, no_interval, outcome
from pipeline.files import marks, replace_marked
from pipeline.metrics.counts import run_counts
from pipeline.metrics.headline import headline
from pipeline.text import markdown


def finding(table: pd.DataFrame) -> str:
    """The result in the sentences of the paper: what was measured on what, and why it is so."""
    told = headline(table)
    rest = [told[name] for name in ("rest", "precision", "why", "processor", "bias")]
    lead = markdown(told["lead"])
    return " ".join(
        filter(None, [f"**{lead}**" if told["decided"] else lead, *map(markdown, rest)])
    )


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


def update(
    path: Path, study: str, verdicts: Sequence[Mapping[str, Any]], table: pd.DataFrame
) -> None:
    """Put the verdicts, and the finding where it has a place, between the marks of a file.

    `table` is that of the metrics. Raises SamestepError where the file has no mark for verdicts.
    """
    replace_marked(path, f"verdicts of {study}", block(study, verdicts, run_counts(table).text))
    if marks(f"finding of {study}")[0] in path.read_text(encoding="utf-8"):
        replace_marked(path, f"finding of {study}", finding(table))


def _effect(one: Mapping[str, Any]) -> str:
    effect = one["effect"]
    if effect is None:
        return "-"
    if without := no_interval(one):
        return f"{effect['value']:.3g} {without}"
    return f"{effect['value']:.3g} [{effect['low']:.3g}, {effect['high']:.3g}]"


def _claimed(one: Mapping[str, Any]) -> str:
    return str(one["claimed"]["text"]) if one["claimed"] else "-"
