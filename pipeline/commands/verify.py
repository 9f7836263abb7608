"""`python -m pipeline verify --results DIR`: does what was rebuilt have the archived bytes?"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

SUMMARY = "whether results that were rebuilt from an archive have the bytes that it states"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the stage."""
    parser.add_argument(
        "--results", type=Path, required=True, help="folder results/from_archive/<study>"
    )


def run(args: argparse.Namespace) -> int:
    """Print the verdict; exit with status 1 and name what differs, and probably why, if not."""
    from pipeline.archive.layout import PRODUCT, SUMS_FILE
    from pipeline.archive.read import parse_sums
    from pipeline.archive.verify import differing, reason

    listed = parse_sums((args.results / SUMS_FILE).read_text(encoding="utf-8"), SUMS_FILE)
    products = {name: total for name, total in listed.items() if PRODUCT.fullmatch(name)}
    others = differing(products, args.results)
    if not others:
        print(f"{len(products)} files rebuilt, every one byte-identical to the archive")
        return 0
    shown = ", ".join(others[:5]) + (", ..." if len(others) > 5 else "")
    print(
        f"{len(others)} of {len(products)} rebuilt files differ from the archive: {shown}; "
        + reason(listed, args.results),
        file=sys.stderr,
    )
    return 1
