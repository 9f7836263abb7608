"""`python -m pipeline verify --results results/from_archive/smoke`: has it the archived bytes?"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from pipeline import options

SUMMARY = "whether results that were rebuilt from an archive have the bytes that it states"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the stage."""
    parser.add_argument(
        "--results", type=options.folder, required=True, help="folder results/from_archive/<study>"
    )


def run(args: argparse.Namespace) -> int:
    """Print the verdict; exit with status 1 and name what differs, and probably why, if not."""
    from pipeline.archive.layout import PRODUCT, SUMS_FILE
    from pipeline.archive.read import parse_sums
    from pipeline.archive.verify import differing, reason, unlisted
    from pipeline.documents import MAX_MADE_BYTES, read_text
    from pipeline.errors import ArchiveError

    sums = args.results / SUMS_FILE
    fix = "give a folder that `python -m pipeline unpack` made"
    listed = parse_sums(read_text(sums, "", ArchiveError, fix, MAX_MADE_BYTES), str(sums))
    products = {name: total for name, total in listed.items() if PRODUCT.fullmatch(name)}
    if missing := unlisted(listed, args.results):
        print(
            f"the archive states no checksum of {len(missing)} products of its study "
            f"({shown(missing)}), so they cannot be verified; pack it anew or use the commit that "
            "made it",
            file=sys.stderr,
        )
        return 1
    if not any(map(Path.is_file, map(args.results.joinpath, products))):
        raise ArchiveError(
            f"nothing was rebuilt below {args.results}; run `make paper FROM=archive.zip` first"
        )
    others = differing(products, args.results)
    if not others:
        print(f"{len(products)} files rebuilt, every one byte-identical to the archive")
        return 0
    print(
        f"{len(others)} of {len(products)} rebuilt files differ from the archive: {shown(others)}; "
        + reason(listed, args.results),
        file=sys.stderr,
    )
    return 1


def shown(names: Sequence[str]) -> str:
    """The first names, and that there are more."""
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
