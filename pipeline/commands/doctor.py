"""`python -m pipeline doctor --study smoke`: what this machine can run.

First a sentence; then what is missing for the study, or for studies on this machine. Of GPUs,
containers and clusters it speaks where the study needs them, or with `--all`. Exit status 0
whatever is missing; with `--require NAME` 1 where that is not ok.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from functools import partial

from pipeline import options
from pipeline.doctor.examine import examine, probes
from pipeline.doctor.types import BROKEN, NOTE, OK, Finding

SUMMARY = "what this machine can run, and how to get what is missing"

ELSEWHERE = ("cuda", "nccl", "apex", "container", "image", "builders", "slurm")
"""Probes of what a study on one machine without a GPU never needs."""

PREFIX = "study:"
"""Begins the name of a study's probe."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the stage."""
    names = [name for name, _ in probes()]
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--study", type=options.study, help=f"for this study alone: {options.STUDY}")
    what.add_argument("--all", action="store_true", help="print every probe, also what is there")
    parser.add_argument("--json", action="store_true", help="print every probe as JSON")
    parser.add_argument(
        "--require", action="append", default=[], choices=names, metavar="NAME",
        help=f"exit with 1 unless this is ok (repeatable): {', '.join(names)}",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Run the probes, print what they found; exit status 1 where a required one is not ok."""
    from pipeline.doctor import studies
    from pipeline.study.load import load_study

    wanted = dict(probes())
    if args.study is not None:
        asked = load_study(args.study)
        needed = studies.needs(asked) | {*args.require}
        wanted = {name: probe for name, probe in wanted.items() if name in needed}
        wanted["corpus"] = partial(studies.corpus, asked)
        wanted[PREFIX + asked.name] = partial(studies.study, args.study)
    found = {name: examine(probe) for name, probe in wanted.items()}
    if args.json:
        print(json.dumps({name: asdict(finding) for name, finding in found.items()}, indent=1))
    else:
        print(sentence(found))
        shown = found if args.all else lacking(found, of_study=args.study is not None)
        print("\n".join(lines(shown)), end="\n" * bool(shown))
        if not (args.all or args.study):
            print("`--study NAME` says what a study lacks here; `--all` prints every probe.")
    return 0 if all(found[name].status == OK for name in args.require) else 1


def sentence(found: Mapping[str, Finding]) -> str:
    """Which of the studies that were probed this machine can run, whole or in part."""
    status = {
        name.removeprefix(PREFIX): finding.status
        for name, finding in found.items()
        if name.startswith(PREFIX)
    }
    parts = [
        ", ".join(names) + words
        for words, wanted in (("", OK), (" in part", NOTE))
        if (names := [name for name, one in status.items() if one == wanted])
    ]
    return f"This machine runs {'; '.join(parts) or 'no cell of ' + ', '.join(status)}."


def lacking(found: Mapping[str, Finding], *, of_study: bool) -> dict[str, Finding]:
    """What is not there and can be mended: for a study, or for those of one machine without GPU."""
    shown = {}
    for name, finding in found.items():
        asked = of_study or not (name in ELSEWHERE or name.startswith(PREFIX))
        if finding.status == BROKEN or (asked and finding.status != OK and finding.fix):
            shown[name] = finding
    return shown


def lines(found: Mapping[str, Finding]) -> Iterator[str]:
    """Aligned lines; the way to get a thing stands below it."""
    width = max(map(len, found), default=0)
    for name, finding in found.items():
        yield f"{finding.status:7}  {name:{width}}  {finding.text}"
        if finding.fix:
            yield f"{'':7}  {'':{width}}  -> {finding.fix}"
