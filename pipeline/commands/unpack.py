"""`python -m pipeline unpack --archive FILE --into results/from_archive`; prints the new folder."""

from __future__ import annotations

import argparse

from pipeline import options

SUMMARY = "check an archive and lay its records where results are rebuilt from them"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the stage."""
    parser.add_argument("--archive", type=options.path, required=True, help="zip file of `archive`")
    parser.add_argument(
        "--into", type=options.new_folder, required=True, help="folder of the study's folder"
    )


def run(args: argparse.Namespace) -> int:
    """Unpack and print the folder."""
    from pipeline.archive.unpack import unpack

    print(unpack(args.archive, args.into))
    return 0
