"""`python -m pipeline strategies`: what every strategy is, needs and sends."""

from __future__ import annotations

import argparse

from pipeline import options

SUMMARY = "every strategy: what it is, its knobs, what it needs, splits and sends"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the stage."""
    parser.add_argument(
        "--readme", type=options.path, help="Markdown file whose marked tables are renewed"
    )


def run(args: argparse.Namespace) -> int:
    """Print the table as Markdown, or put it between the marks of a file."""
    from pipeline.files import replace_marked
    from pipeline.strategies import sent_table, table

    if args.readme:
        replace_marked(args.readme, "strategies", table())
        replace_marked(args.readme, "sent", sent_table())
    else:
        print(f"{table()}\n\n{sent_table()}")
    return 0
