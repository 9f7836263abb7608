"""The command `predict`: step times and memory, from points, a study or the published points."""

from __future__ import annotations

import argparse
import sys
import time
from functools import partial
from pathlib import Path

from pipeline import options
from pipeline.commands import flag, one_of, option, together
from pipeline.cost.constants import DEVICES, Constants
from pipeline.cost.points import predict_from_base, predict_row, read, unread, write
from pipeline.documents import read_text
from pipeline.errors import PredictionError
from pipeline.files import marks, replace_marked
from pipeline.resolved import first_runs
from pipeline.study.load import load_study

MOST_NODES = 1024
"""Nodes that a study is projected to."""


add_arguments = together(
    one_of(
        option("--points", options.file, "CSV of configurations, one a row"),
        option("--study", options.study, f"on this machine, or on GPUs: {options.STUDY}"),
        flag("--score", "print the errors on the published points"),
        option("--page", options.file, "as --score, into the marked parts of a Markdown file"),
        required=True,
    ),
    option("--out", options.new_file, "with --points or --study: CSV to write"),
    option("--calibration", options.file, "with --study: what `calibrate` has written"),
    option("--device", str, "with --study: project its cells on nodes of this GPU",
           choices=DEVICES),
    option("--link", options.rate, "with --device: of a node in all, as 200gbit; ZeRO 2 and 3 "
           "over several nodes get two GPUs' shares of it", metavar="RATE"),
    option("--nodes", options.counts(1, MOST_NODES),
           f"with --device: node counts (default 1,2,4 to {MOST_NODES})", metavar="N,N"),
    flag("--weak", "with --device: a device keeps its batch (default: as the study says)"),
    option("--metrics", options.file,
           "with --study: metrics.parquet of its results, if not those in results/<study>"),
    flag("--base",
         "with --points: of rows alike but for gpus, dp, accum and global_batch the measured step "
         "of the smallest world is given, and larger ones are predicted from it"),
)  # fmt: skip


def run(args: argparse.Namespace) -> None:
    """Predict a file of points or a study, or score the model."""
    if args.study is not None:
        rows, lines = (_on_gpus if args.device else _on_this_machine)(args)
        print("\n".join(lines))
        if args.out:
            write(rows, args.out)
    elif args.points is not None:
        options.check_mode(args, "--points", "points out base")
        if args.out is None:
            raise PredictionError("--points needs --out; name the CSV to write")
        rows, constants = read(args.points), Constants()
        if args.base:
            added = predict_from_base(rows, constants, partial(print, file=sys.stderr))
        else:
            added = [predict_row(row, constants) for row in rows]
        write([{**row, **more} for row, more in zip(rows, added, strict=True)], args.out)
        refused = sum(bool(more["reason"]) for more in added)
        scaled = f", {sum(bool(more['base']) for more in added)} from a base" if args.base else ""
        others = ", ".join(unread(rows[0], base=args.base))
        print(
            f"{args.out}: {len(rows)} rows, {refused} of them not predicted (column reason){scaled}"
            + (f"; columns that are not read: {others}" if others else "")
        )
    else:
        from pipeline.tables.points import in_markdown

        options.check_mode(args, "--page" if args.page else "--score", "score page")
        parts = in_markdown()
        if args.page is None:
            print("\n\n".join(parts[name] for name in ("errors", "bars")))
            return
        content = read_text(args.page, "Markdown file", PredictionError)
        # docs/planner.md has all but the short table, which README has.
        own = [name for name in parts if marks(name)[0] in content]
        for name in own or parts:
            replace_marked(args.page, name, parts[name])
        if "errors" in own:
            from pipeline.figures import points, theme

            theme.apply()
            theme.save(points.draw(), args.page.parent, args.page.stem, ("png",))


def _on_this_machine(args: argparse.Namespace) -> tuple[list[dict[str, str]], list[str]]:
    """Rows and lines on what a calibration says of a study's cells, beside what was measured."""
    from pipeline.metrics.choice import choices
    from pipeline.metrics.results import Results, records
    from pipeline.metrics.statistics import Interval
    from pipeline.planner import here

    options.check_mode(args, "--study", "study out calibration metrics")
    if args.calibration is None:
        raise PredictionError(
            "--study needs --calibration, which `calibrate` writes, or --device (docs/planner.md)"
        )
    study = load_study(args.study)
    path = args.metrics or Path("results", study.name, "metrics", "metrics.parquet")
    measured = {}
    if path.is_file():
        for row in records(Results.read(path, study.name).pick("cell", "step_seconds")):
            count, how = int(row["n"]), row["interval"]
            one = Interval(row["value"], row["low"], row["high"], count, how)
            measured[row["cell"], int(row["nodes"])] = one
    calibration = here.Calibration.read(args.calibration, study)
    begun = time.monotonic()
    medians = {place: one.value for place, one in measured.items()}
    runs = first_runs(study)
    rows = here.predict_study(runs, calibration, medians)
    lines = choices(runs, rows, measured, time.monotonic() - begun)
    return rows, [*here.shown(rows), *([""] if lines else []), *lines]


def _on_gpus(args: argparse.Namespace) -> tuple[list[dict[str, str]], list[str]]:
    """Rows and lines on what the cost model says of a study's cells on many nodes of a GPU."""
    from pipeline.planner.projection import project, shown
    from pipeline.planner.ranking import Cluster

    options.check_mode(args, "--device", "study out device link nodes weak")
    counts = args.nodes or [2**power for power in range(MOST_NODES.bit_length())]
    if max(counts) > 1 and args.link is None:
        raise PredictionError("--device needs --link for several nodes; give it, as 200gbit")
    cluster = Cluster(args.device, DEVICES[args.device], 1, 1, args.link or 0.0)
    rows = project(load_study(args.study), cluster, counts, weak=args.weak)
    return rows, shown(rows, args.device)
