"""What a reader of the table of metrics must not miss, as lines on stderr."""

from __future__ import annotations

import sys

import pandas as pd

from pipeline.metrics.counts import LEVELS
from pipeline.metrics.parity import UNEQUAL
from pipeline.metrics.ranks import DRIFT
from pipeline.metrics.runs import TIMER_SHARE
from pipeline.metrics.select import mixed_notes, records


def report(frame: pd.DataFrame) -> None:
    """Lines on stderr for what a reader must not miss; returns the cells that are not equal."""
    status = frame[frame.level.isin(LEVELS) & (frame.metric == "status")]
    for row in records(status[status.status != "ok"]):
        print(f"{row['run_id']}: {row['status']}: {row['reason']}", file=sys.stderr)
    for row in records(frame[frame.metric.isin(["drift", "order_drift"]) & (frame.text == DRIFT)]):
        what = "the runs in their order" if row["level"] == "study" else row["run_id"]
        print(f"{what}: step times drifted by {100 * row['value']:+.1f} %", file=sys.stderr)
    slow = frame[(frame.metric == "timer_overhead_share") & (frame.value > TIMER_SHARE)]
    for row in records(slow):
        print(
            f"{row['run_id']}: reading the clock takes {100 * row['value']:.1f} % of a step, over "
            f"{100 * TIMER_SHARE:g} %; make the steps longer",
            file=sys.stderr,
        )
    clocks = sorted({str(text) for text in frame[frame.metric == "clock"].text})
    if len(clocks) > 1:
        print(
            f"the runs were timed in {len(clocks)} ways ({'; '.join(clocks)}), so their step times "
            "differ by more than what is compared; train them again with one version",
            file=sys.stderr,
        )
    for note in mixed_notes(frame):
        print(f"mixed: {note}", file=sys.stderr)
    verdicts = frame[(frame.metric == "parity_verdict") & frame.text.isin(UNEQUAL)]
    for row in records(verdicts):
        print(
            f"{row['text']}: {row['label']} at {row['nodes']} nodes left the tolerance of its "
            f"training against {row['base']}",
            file=sys.stderr,
        )
