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
    from pipeline.archive.layout import PRODUCT, STUDY_FILE, SUMS_FILE, products
    from pipeline.archive.read import parse_sums
    from pipeline.archive.verify import differing, reason
    from pipeline.documents import MAX_MADE_BYTES, read_text
    from pipeline.errors import ArchiveError
    from pipeline.study.load import load_study

    sums = args.results / SUMS_FILE
    fix = "give a folder that `python -m pipeline unpack` made"
    listed = parse_sums(read_text(sums, "", ArchiveError, fix, MAX_MADE_BYTES), str(sums))
    made = products(load_study(args.results / STUDY_FILE))
    if missing := [name for name in made if name not in listed]:
        print(
            f"the archive states no checksum of {len(missing)} products of its study "
            f"({shown(missing)}), so they cannot be verified; pack it anew or use the commit that "
            "made it",
            file=sys.stderr,
        )
        return 1
    if former := [name for name in listed if PRODUCT.fullmatch(name) and name not in made]:
        print(f"not compared, as this version does not make them: {shown(former)}")
    expected = {name: listed[name] for name in made}
    if not any(map(Path.is_file, map(args.results.joinpath, expected))):
        raise ArchiveError(
            f"nothing was rebuilt below {args.results}; run `make paper FROM=archive.zip` first"
        )
    others = differing(expected, args.results)
    if not others:
        print(f"{len(expected)} files rebuilt, every one byte-identical to the archive")
        return 0
    print(
        f"{len(others)} of {len(expected)} rebuilt files differ from the archive: {shown(others)}; "
        + reason(listed, args.results),
        file=sys.stderr,
    )
    return 1


def shown(names: Sequence[str]) -> str:
    """The first names, and that there are more."""
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
