"""`python -m pipeline metrics --study FILE --runs DIR --out metrics.parquet`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pipeline import options

if TYPE_CHECKING:
    import pandas as pd

SUMMARY = "run records -> one validated tidy table (Parquet)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the stage."""
    parser.add_argument("--study", type=options.study, required=True, help=options.STUDY)
    parser.add_argument(
        "--runs", type=options.folder, required=True, help="folder <cell>/n<nodes>/r<repeat>"
    )
    parser.add_argument(
        "--out", type=options.new_file, required=True, help="metrics.parquet to write"
    )
    parser.add_argument(
        "--validation", type=options.file, help="emulation.json that `make bench` wrote"
    )
    parser.add_argument(
        "--yardstick", type=options.file, help="yardstick.json by which the runs counted"
    )
    parser.add_argument(
        "--require-parity",
        action="store_true",
        help="exit with status 1 when a cell did not compute the same training",
    )


def run(args: argparse.Namespace) -> int:
    """Write the table; print each cell that is not ok or not equal, so that none hides."""
    from pipeline.errors import StudyError
    from pipeline.metrics import table
    from pipeline.metrics.build import build
    from pipeline.metrics.emulation import load_bias
    from pipeline.study.load import load_study

    study = load_study(args.study)
    if args.yardstick and not study.cluster.yardstick:
        raise StudyError(f"--yardstick: the study {study.name} has none; leave the option out")
    frame = build(study, args.runs, load_bias(args.validation, args.yardstick))
    table.write(frame, args.out)
    unequal = _report(frame)
    return 1 if unequal and args.require_parity else 0


def _report(frame: pd.DataFrame) -> Sequence[str]:
    """Lines on stderr for what a reader must not miss; returns the cells that are not equal."""
    from pipeline.metrics.parity import UNEQUAL
    from pipeline.metrics.ranks import DRIFT
    from pipeline.metrics.runs import TIMER_SHARE
    from pipeline.metrics.select import mixed_notes, records

    status = frame[frame.level.isin(["run", "profile"]) & (frame.metric == "status")]
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
    unequal = [
        f"{row['text']}: {row['label']} at {row['nodes']} nodes left the tolerance of its training "
        f"against {row['base']}"
        for row in records(verdicts)
    ]
    for line in unequal:
        print(line, file=sys.stderr)
    return unequal
