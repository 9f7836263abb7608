"""`python -m pipeline watch --study smoke`: the matrix of cells x nodes as it fills up.

It reads `results/<study>` and nothing else, so it also watches a study that a cluster makes. It
ends when all runs have ended; without a terminal, and with `--once`, it prints once.
"""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import suppress

from pipeline import options

SUMMARY = "show a study while it runs: the matrix of cells and nodes, with medians as they come"
REFRESH_SECONDS = 2.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the stage."""
    parser.add_argument("--study", type=options.study, required=True, help=options.STUDY)
    parser.add_argument("--once", action="store_true", help="print once instead of watching")


def run(args: argparse.Namespace) -> int:
    """Draw until every planned run has ended, or Control-C."""
    from rich.console import Console
    from rich.live import Live

    from pipeline.study.load import load_study, results_folder
    from pipeline.watch.show import matrix
    from pipeline.watch.state import Watched

    watched = Watched(load_study(args.study), results_folder(args.study))
    watched.update()
    console = Console()
    if args.once or not sys.stdout.isatty():
        console.print(matrix(watched))
        return 0
    with suppress(KeyboardInterrupt), Live(matrix(watched), console=console) as live:
        while any(run.run_id not in watched.ended for run in watched.planned):
            time.sleep(REFRESH_SECONDS)
            watched.update()
            live.update(matrix(watched))
    return 0
