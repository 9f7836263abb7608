"""Commands `calibrate` and `predict`: this machine's figures, and step times predicted."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from pipeline import options
from pipeline.cost.devices import DEVICES
from pipeline.errors import PredictionError

MOST_NODES = 1024
"""Nodes that a study is projected to."""


def calibrate(args: argparse.Namespace) -> int:
    """Write the times of operators and collectives of this machine."""
    from pipeline.files import write_text
    from pipeline.launch.calibrate import measured
    from pipeline.machine import inherited
    from pipeline.machine.control_groups import usable_cores
    from pipeline.schemas import validate
    from pipeline.study.load import load_study

    study = load_study(args.study)
    inherited.begin(study.environment)
    made = measured(study, usable_cores())
    validate(made, "calibration", args.out)
    write_text(args.out, json.dumps(made, indent=1) + "\n")
    print(
        f"calibrate: {len(made['operators'])} operators, {len(made['collectives'])} times of "
        f"collectives, {1e6 * made['host_seconds']:.0f} us of the host for an operator, memory "
        f"{made['memory_bytes_per_second'] / 1e9:.1f} GB/s -> {args.out}"
    )
    return 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `predict` takes."""
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--points", type=options.file, help="CSV of configurations, one a row")
    what.add_argument(
        "--study", type=options.study, help=f"on this machine, or on GPUs: {options.STUDY}"
    )
    what.add_argument(
        "--score", action="store_true", help="print the errors on the published points"
    )
    what.add_argument(
        "--page", type=options.file, help="as --score, into the marked table of a Markdown file"
    )
    parser.add_argument(
        "--out", type=options.new_file, help="with --points or --study: CSV to write"
    )
    parser.add_argument(
        "--calibration", type=options.file, help="with --study: what `calibrate` has written"
    )
    parser.add_argument(
        "--device", choices=DEVICES, help="with --study: project its cells on nodes of this GPU"
    )
    parser.add_argument("--link", metavar="RATE", help="with --device: of a node, as 200gbit")
    parser.add_argument(
        "--nodes", type=options.counts(1, MOST_NODES), metavar="N,N",
        help=f"with --device: node counts (default 1,2,4 to {MOST_NODES})",
    )  # fmt: skip
    parser.add_argument(
        "--weak", action="store_true",
        help="with --device: a device keeps its batch (default: as the study says)",
    )  # fmt: skip
    parser.add_argument(
        "--metrics", type=options.file,
        help="with --study: metrics.parquet of its results, if not those in results/<study>",
    )  # fmt: skip
    parser.add_argument(
        "--base", action="store_true",
        help="with --points: of rows alike but for gpus, dp, accum and global_batch the measured "
        "step of the smallest world is given, and larger ones are predicted from it",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Predict a file of points or a study, or score the model; returns the exit status."""
    if args.study is not None:
        return _project_study(args) if args.device else _predict_study(args)
    if args.points is None:
        from pipeline.cost.score import markdown

        options.check_mode(args, "--page" if args.page else "--score", "score page")
        if args.page is None:
            print(markdown())
            return 0
        from pipeline.cost.figure import draw
        from pipeline.files import replace_marked

        replace_marked(args.page, "errors", markdown())
        draw(args.page.with_suffix(".png"))
        return 0
    options.check_mode(args, "--points", "points out base")
    if args.out is None:
        raise PredictionError("--points needs --out; name the CSV to write")
    from pipeline.cost import points
    from pipeline.cost.constants import Constants

    rows, constants = points.read(args.points), Constants()
    if args.base:
        added = points.predict_from_base(rows, constants)
    else:
        added = [points.predict_row(row, constants) for row in rows]
    points.write([{**row, **more} for row, more in zip(rows, added, strict=True)], args.out)
    refused = sum(bool(more["reason"]) for more in added)
    print(f"{args.out}: {len(rows)} rows, {refused} of them not predicted (column reason)")
    return 0


def _predict_study(args: argparse.Namespace) -> int:
    """Print and write what a calibration says of each cell of a study, beside what was measured."""
    from pipeline.cost import points
    from pipeline.metrics import table
    from pipeline.metrics.select import pick, records
    from pipeline.planner import here
    from pipeline.study.expansion import expand
    from pipeline.study.load import load_study

    options.check_mode(args, "--study", "study out calibration metrics")
    if args.calibration is None:
        raise PredictionError(
            "--study needs --calibration, which `calibrate` writes, or --device (docs/planner.md)"
        )
    study = load_study(args.study)
    path = args.metrics or Path("results", study.name, "metrics", "metrics.parquet")
    step_times = []
    if path.is_file():
        step_times = records(pick(table.read(path, study.name), "cell", "step_seconds"))
    measured = {(row["cell"], int(row["nodes"])): row["value"] for row in step_times}
    calibration = here.Calibration.read(args.calibration, study)
    rows = here.predict_study(expand(study), calibration, measured)
    print("\n".join(here.shown(rows)))
    if args.out:
        points.write(rows, args.out)
    return 0


def _project_study(args: argparse.Namespace) -> int:
    """Print and write what the cost model says of each cell of a study on many nodes of a GPU."""
    from pipeline.cost import points
    from pipeline.planner.projection import project, shown
    from pipeline.planner.ranking import Cluster, gigabits
    from pipeline.study.load import load_study

    options.check_mode(args, "--device", "study out device link nodes weak")
    counts = args.nodes or [2**power for power in range(MOST_NODES.bit_length())]
    if max(counts) > 1 and args.link is None:
        raise PredictionError("--device needs --link for several nodes; give it, as 200gbit")
    link = gigabits(args.link) if args.link else 0.0
    cluster = Cluster(args.device, DEVICES[args.device], 1, 1, link)
    rows = project(load_study(args.study), cluster, counts, weak=args.weak)
    print("\n".join(shown(rows)))
    if args.out:
        points.write(rows, args.out)
    return 0
