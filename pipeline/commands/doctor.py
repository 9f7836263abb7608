"""`python -m pipeline doctor`: what this machine can run, and how to get what is missing.

Exit status 0 whatever is missing; with `--require NAME` 1 where that is not ok.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict

from pipeline.doctor.examine import examine, probes
from pipeline.doctor.types import OK, Finding

SUMMARY = "what this machine can run, and how to get what is missing"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the stage."""
    names = [name for name, _ in probes()]
    parser.add_argument("--json", action="store_true", help="print JSON instead of lines")
    parser.add_argument(
        "--require", action="append", default=[], choices=names, metavar="NAME",
        help=f"exit with 1 unless this is ok (repeatable): {', '.join(names)}",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Run every probe, print what it found; exit status 1 where a required one is not ok."""
    found = {name: examine(probe) for name, probe in probes()}
    if args.json:
        print(json.dumps({name: asdict(finding) for name, finding in found.items()}, indent=1))
    else:
        print("\n".join(lines(found)))
    return 0 if all(found[name].status == OK for name in args.require) else 1


def lines(found: dict[str, Finding]) -> Iterator[str]:
    """Aligned lines; the way to get a thing stands below it."""
    width = max(len(name) for name in found)
    for name, finding in found.items():
        yield f"{finding.status:7}  {name:{width}}  {finding.text}"
        if finding.fix:
            yield f"{'':7}  {'':{width}}  -> {finding.fix}"
