"""Numbers of runs for paper, report and README, and notes on runs that no reader must miss."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from pipeline.metrics.parity import UNEQUAL
from pipeline.metrics.ranks import DRIFT
from pipeline.metrics.runs import TIMER_SHARE
from pipeline.metrics.select import listed, mixed_notes, pick, plural, records

STATUSES = ("ok", "disturbed", "oom", "unsupported", "failed", "timeout")
"""Of runs, as tables and page list them."""

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
        kinds = [(n, count) for n, count in self.planned.items() if count or n == "timed"]
        *others, (last, number) = kinds
        return listed([*(f"{count} {n}" for n, count in others), plural(number, f"{last} run")])


def run_counts(table: pd.DataFrame) -> RunCounts:
    """The counts of a table of metrics."""
    status = {name: pick(table, level, "status")["text"] for level, name in LEVELS.items()}
    finished = {name: int((texts == "ok").sum()) for name, texts in status.items()}
    return RunCounts({name: len(texts) for name, texts in status.items()}, finished)


def report(frame: pd.DataFrame) -> None:
    """Lines on stderr for what a reader of the table must not miss."""
    status = frame[frame.level.isin(LEVELS) & (frame.metric == "status")]
    notes = [
        f"{row['run_id']}: {row['status']}: {row['reason']}"
        for row in records(status[status.status != "ok"])
    ]
    for row in records(frame[frame.metric.isin(["drift", "order_drift"]) & (frame.text == DRIFT)]):
        what = "the runs in their order" if row["level"] == "study" else row["run_id"]
        notes.append(f"{what}: step times drifted by {100 * row['value']:+.1f} %")
    slow = frame[(frame.metric == "timer_overhead_share") & (frame.value > TIMER_SHARE)]
    notes += [
        f"{row['run_id']}: reading the clock takes {100 * row['value']:.1f} % of a step, over "
        f"{100 * TIMER_SHARE:g} %; make the steps longer"
        for row in records(slow)
    ]
    clocks = sorted({str(text) for text in frame[frame.metric == "clock"].text})
    if len(clocks) > 1:
        notes.append(
            f"the runs were timed in {len(clocks)} ways ({'; '.join(clocks)}), so their step times "
            "differ by more than what is compared; train them again with one version"
        )
    notes += [f"mixed: {note}" for note in mixed_notes(frame)]
    verdicts = frame[(frame.metric == "parity_verdict") & frame.text.isin(UNEQUAL)]
    notes += [
        f"{row['text']}: {row['label']} at {row['nodes']} nodes left the tolerance of its training "
        f"against {row['base']}"
        for row in records(verdicts)
    ]
    for note in notes:
        print(note, file=sys.stderr)
