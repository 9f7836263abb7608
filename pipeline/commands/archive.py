"""`python -m pipeline archive --study smoke`: archives/<study>.zip from results/<study>.

`--results` and `--out` name another folder and another file.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from pipeline import options

SUMMARY = "a finished study with all that belongs to it as one file, a Workflow Run RO-Crate"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the stage."""
    place = parser.add_mutually_exclusive_group(required=True)
    place.add_argument("--study", type=options.study, help=options.STUDY)
    place.add_argument("--results", type=options.folder, help="folder results/<study>")
    parser.add_argument(
        "--out", type=options.new_file, help="zip file to write; archives/<study>.zip"
    )
    parser.add_argument(
        "--partial",
        nargs="?",
        const="yes",
        choices=["yes"],
        help="pack the records of an unfinished study, without results",
    )


def run(args: argparse.Namespace) -> int:
    """Check the study, write the archive, print its size and checksum."""
    from pipeline.archive.contents import contents
    from pipeline.archive.layout import STUDY_FILE
    from pipeline.archive.pack import write_zip
    from pipeline.errors import ArchiveError
    from pipeline.files import sha256_of_file
    from pipeline.study.load import results_folder

    results = args.results or results_folder(args.study)
    out = args.out or Path("archives", f"{results.name}.zip")
    if not (results / STUDY_FILE).is_file():
        raise ArchiveError(f"there is no {results / STUDY_FILE}; run the study with make paper")
    parts = contents(results, partial=args.partial is not None)
    write_zip(parts, out)
    size = out.stat().st_size / 1e6
    print(f"{out}: {len(parts) + 1} files, {size:.1f} MB, sha256 {sha256_of_file(out)}")
    return 0
