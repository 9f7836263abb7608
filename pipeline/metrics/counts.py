"""How many runs a study has: the one place that counts them, for paper, report and README."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from pipeline.metrics.select import listed, pick, plural

LEVELS = {"run": "timed", "profile": "profiled", "real_time": "real-time"}
"""Levels of the table of metrics that are about runs, and what these are called."""


@dataclass(frozen=True)
class RunCounts:
    """Runs of each kind, whatever became of them, and how many of each finished."""

    planned: Mapping[str, int]
    ok: Mapping[str, int]

    @property
    def finished(self) -> int:
        """All that finished, of every kind."""
        return sum(self.ok.values())

    @property
    def text(self) -> str:
        """`18 timed and 3 profiled runs`: the kinds of which there are any."""
        kinds = {name: count for name, count in self.planned.items() if count or name == "timed"}
        last = list(kinds)[-1]
        said = [f"{count} {name}" for name, count in kinds.items() if name != last]
        return listed([*said, plural(kinds[last], f"{last} run")])


def run_counts(table: pd.DataFrame) -> RunCounts:
    """The counts of a table of metrics."""
    status = {name: pick(table, level, "status")["text"] for level, name in LEVELS.items()}
    finished = {name: int((found == "ok").sum()) for name, found in status.items()}
    return RunCounts({name: len(found) for name, found in status.items()}, finished)
