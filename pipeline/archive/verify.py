"""`python -m pipeline verify --results DIR`: does what was rebuilt have the archived bytes?"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
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
    from pipeline.archive.sums import parse_sums

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


def differing(expected: Mapping[str, str], folder: Path) -> list[str]:
    """Names of `expected` (name -> SHA-256) that are missing below `folder` or are others."""
    from pipeline.files import sha256_of_file

    files = {name: folder / name for name in expected}
    return [
        name
        for name, path in files.items()
        if not path.is_file() or sha256_of_file(path) != expected[name]
    ]


def reason(listed: Mapping[str, str], results: Path) -> str:
    """What in this checkout is not as it was when the archive was made."""
    import json

    from pipeline.archive.layout import ARCHIVE_FILE, LOCK_FILE, ROOT
    from pipeline.training.machine import provenance

    inside = {
        "envs/requirements.lock" if name == LOCK_FILE else name.removeprefix("source/"): total
        for name, total in listed.items()
        if name.startswith("source/") or name == LOCK_FILE
    }
    changed = differing(inside, ROOT)
    if changed:
        return f"this checkout has another {', '.join(changed)}"
    made = json.loads((results / ARCHIVE_FILE).read_text(encoding="utf-8"))
    here = provenance()["git_commit"]
    if made["git_commit"] != here:
        return f"the archive was made by commit {made['git_commit']}, this checkout is {here}"
    return "the code is the same, so compare the installed versions with environment/" + (
        "requirements.lock of the archive"
    )
