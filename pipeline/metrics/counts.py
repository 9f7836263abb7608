"""How many runs a study has: the one place that counts them, for paper, report and README."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from pipeline.metrics.select import pick, plural


@dataclass(frozen=True)
class RunCounts:
    """Timed and profiled runs, whatever became of them, and how many of each finished."""

    timed: int
    profiled: int
    timed_finished: int
    profiled_finished: int

    @property
    def finished(self) -> int:
        """All that finished, of both kinds."""
        return self.timed_finished + self.profiled_finished

    @property
    def text(self) -> str:
        """`18 timed and 3 profiled runs`; without profiled ones `18 timed runs`."""
        if not self.profiled:
            return plural(self.timed, "timed run")
        return f"{self.timed} timed and {plural(self.profiled, 'profiled run')}"


def run_counts(table: pd.DataFrame) -> RunCounts:
    """The counts of a table of metrics."""
    timed, profiled = (pick(table, level, "status")["text"] for level in ("run", "profile"))
    finished = [int((status == "ok").sum()) for status in (timed, profiled)]
    return RunCounts(len(timed), len(profiled), *finished)
