"""`python -m pipeline repeats --study FILE --runs DIR --repeat N --out FILE`."""

from __future__ import annotations

import argparse
import json
import sys

from pipeline import options
from pipeline.errors import StudyError

SUMMARY = "which cells call for one more repeat, for studies with adaptive repeats"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the stage."""
    parser.add_argument("--study", type=options.study, required=True, help=options.STUDY)
    parser.add_argument(
        "--runs", type=options.folder, required=True, help="folder <cell>/n<nodes>/r<repeat>"
    )
    parser.add_argument(
        "--repeat",
        type=options.count(0, 199),
        required=True,
        help="the repeat to decide on, from 0",
    )
    parser.add_argument(
        "--out", type=options.new_file, required=True, help="JSON list of run ids to write"
    )


def run(args: argparse.Namespace) -> int:
    """Write the ids of the runs of this repeat that are called for."""
    from pipeline.files import write_text
    from pipeline.metrics.adaptive import called_for
    from pipeline.study.load import load_study

    study = load_study(args.study)
    if args.repeat >= (most := study.repeats.at_most):
        raise StudyError(
            f"study {study.name!r} has {most} repeat{'s' if most > 1 else ''}, counted from 0; "
            f"give --repeat up to {most - 1}, not {args.repeat}"
        )
    found = called_for(study, args.runs)
    ids = [spec.run_id for spec in found if spec.repeat == args.repeat]
    write_text(args.out, json.dumps(ids, indent=1) + "\n")
    print(f"repeat {args.repeat}: {len(ids)} runs are called for", file=sys.stderr)
    return 0
