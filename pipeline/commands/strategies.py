"""`python -m pipeline strategies [--readme FILE]`: every strategy, its knobs and what it needs."""

from __future__ import annotations

import argparse

from pipeline import options

SUMMARY = "every strategy: what it is, its knobs, the packages that it needs"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the stage."""
    parser.add_argument(
        "--readme", type=options.path, help="Markdown file whose marked table is renewed"
    )


def run(args: argparse.Namespace) -> int:
    """Print the table as Markdown, or put it between the marks of a file."""
    from pipeline.files import replace_marked
    from pipeline.strategies import table

    if args.readme:
        replace_marked(args.readme, "strategies", table())
    else:
        print(table())
    return 0
