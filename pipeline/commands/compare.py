"""`python -m pipeline compare results/smoke other/results/smoke --out results/compared`.

Two result sets, each a folder results/<study>. Exit status 0: equal within what
was asked for; 1: they differ; 2: bad input.
"""

from __future__ import annotations

import argparse
import math

from pipeline import options
from pipeline.errors import ComparisonError

SUMMARY = "hold two result sets against one another: losses, times, environment"
TIMES = ("ignore", "interval")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the stage."""
    parser.add_argument(
        "one", type=options.folder, metavar="A", help="results of a study: results/smoke"
    )
    parser.add_argument(
        "other", type=options.folder, metavar="B", help="the results to hold against A"
    )
    parser.add_argument(
        "--losses",
        default="bit",
        metavar="bit|RELATIVE",
        help="losses and gradient norms must be equal bit for bit, or within this (default: bit)",
    )
    parser.add_argument(
        "--times",
        choices=TIMES,
        default="ignore",
        help="interval: no step-time ratio's interval may lie outside the margin (default: ignore)",
    )
    parser.add_argument(
        "--margin",
        default="0.05",
        metavar="RELATIVE",
        help="step times this close are the same (default: 0.05)",
    )
    parser.add_argument(
        "--out", type=options.new_folder, help="folder for compare.{md,csv,pdf,svg,png}"
    )


def run(args: argparse.Namespace) -> int:
    """Print the summary, write table and figure; 1 where the sets differ."""
    allowed, margin = tolerance(args.losses), share(args.margin)
    from pipeline.compare import write
    from pipeline.compare.sets import ResultSet, compare

    if args.one.resolve() == args.other.resolve():
        raise ComparisonError(f"{args.one} and {args.other} are both {args.one.name}; give two")
    found = compare(ResultSet.read(args.one), ResultSet.read(args.other), allowed, margin)
    equal = found.equal(args.times)
    print(write.summary(found))
    if args.out is not None:
        write.write_all(found, args.times, args.out)
        print(f"table and figure: {args.out}")
    return 0 if equal else 1


def tolerance(text: str) -> float:
    """0 for `bit`, else the relative difference; raises ComparisonError on anything else."""
    try:
        value = 0.0 if text == "bit" else float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < 1:
        raise ComparisonError(
            f"--losses {text!r} is neither `bit` nor a relative difference from 0 to 1, as 1e-5"
        )
    return value


def share(text: str) -> float:
    """The equivalence margin; raises ComparisonError unless it is over 0 and under 1."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < 1:
        raise ComparisonError(
            f"--margin {text!r} is no share over 0 and under 1; give one, as 0.05"
        )
    return value
