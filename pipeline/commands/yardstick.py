"""`python -m pipeline yardstick --study F --out F`: the machine's undisturbed speed."""

from __future__ import annotations

import argparse
import json

from pipeline import options
from pipeline.errors import StudyError
from pipeline.files import write_text
from pipeline.launch.emulated.yardstick import measured
from pipeline.machine import inherited
from pipeline.machine.control_groups import usable_cores
from pipeline.schemas import validate
from pipeline.study.expansion import expand
from pipeline.study.load import load_study

SUMMARY = "measure how fast this machine computes a study's passes when nothing disturbs them"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the stage."""
    parser.add_argument("--study", type=options.study, required=True, help=options.STUDY)
    parser.add_argument("--out", type=options.new_file, required=True, help="JSON file to write")
    parser.add_argument(
        "--seconds",
        type=options.count(1, 3600),
        help="of measuring; by default some for each precision and size of a micro-batch",
    )


def run(args: argparse.Namespace) -> int:
    """Measure, write, and say in one line per size how long a forward pass takes."""
    study = load_study(args.study)
    if not study.cluster.yardstick:
        raise StudyError(f"{args.study}: the study has no cluster.yardstick; nothing was measured")
    inherited.begin(study.environment)
    found = measured(expand(study), usable_cores(), args.seconds)
    validate(found, "yardstick", args.out)
    write_text(args.out, json.dumps(found, indent=1) + "\n")
    for one in found["passes"]:
        print(
            f"yardstick: {one['precision']}, {one['sequences']} sequences: forward pass "
            f"{1e3 * one['forward_seconds']:.2f} ms, step {1e3 * one['step_seconds']:.2f} ms"
        )
    print(f"-> {args.out}")
    return 0
