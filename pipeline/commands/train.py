"""`python -m pipeline train --spec spec.json --tokens DIR --out DIR`: one run, one record."""

from __future__ import annotations

import argparse
import sys

from pipeline import options
from pipeline.launch import waiting

SUMMARY = "train one run (cell x nodes x repeat) and write its validated record"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the stage."""
    parser.add_argument("--spec", type=options.path, required=True, help="spec.json of the run")
    parser.add_argument("--tokens", type=options.path, required=True, help="folder of token shards")
    parser.add_argument(
        "--out", type=options.new_folder, required=True, help="folder for the record"
    )
    parser.add_argument("--image", type=options.path, help="container image that the ranks run in")
    parser.add_argument(
        "--yardstick", type=options.path, help="what `yardstick` measured, where the study has it"
    )
    parser.add_argument(
        "--attempt", type=options.count(1, 1000), default=1, help="how often the run was started"
    )
    parser.add_argument(
        "scheduler",
        nargs="*",
        metavar="-- COMMAND",
        help="what starts a process on each node of an allocation, such as srun with its options",
    )


def run(args: argparse.Namespace) -> int:
    """Train and report; 0 also when the record's status is not ok."""
    done = waiting.ask(_again(args))
    return _train(args) if done is None else done


def _again(args: argparse.Namespace) -> list[str]:
    """The words of this command, each option in one word, so that no value looks like another."""
    names = ("spec", "tokens", "out", "image", "yardstick", "attempt")
    given = [(name, value) for name in names if (value := getattr(args, name)) is not None]
    return ["train", *(f"--{name}={value}" for name, value in given), "--", *args.scheduler]


def _train(args: argparse.Namespace) -> int:
    # Whoever asks a waiting process has no use for what that process has imported.
    from pipeline.launch.run import train
    from pipeline.launch.torchrun import RunPaths

    yardstick = args.yardstick and args.yardstick.resolve()
    paths = RunPaths(args.spec.resolve(), args.tokens.resolve(), args.out.resolve(), yardstick)
    record = train(paths, args.attempt, args.scheduler, args.image)
    run_id = record.run["run_id"]
    if record.status != "ok":
        print(f"{run_id}: {record.status}: {record.run['reason']}", file=sys.stderr)
    if stall := record.run["execution"].get("emulation", {}).get("stalled"):
        print(f"{run_id}: warning: stalled, kept in the data: {stall}", file=sys.stderr)
    return 0
