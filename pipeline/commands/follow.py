"""`python -m pipeline follow --study FILE -- COMMAND`: run the workflow, show one line of progress.

`make paper` starts Snakemake by it; the command gets `--configfile=FILE`. What Snakemake says goes
to a file below `logs/workflow` in the results folder; words that somebody should know, and the end
of it on failure, are printed.
"""

from __future__ import annotations

import argparse

from pipeline import options

SUMMARY = "run the workflow of a study with its log in a file and one line of progress"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the stage."""
    parser.add_argument("--study", type=options.study, required=True, help=options.STUDY)
    parser.add_argument(
        "--results",
        type=options.new_folder,
        help="results that are rebuilt from their records, if not results/<study>; none is trained",
    )
    parser.add_argument("workflow", nargs="+", metavar="-- COMMAND", help="what to run")


def run(args: argparse.Namespace) -> int:
    """The exit status of the command."""
    from pipeline.study.load import load_study, results_folder
    from pipeline.watch.follow import follow
    from pipeline.watch.state import Watched

    results = args.results or results_folder(args.study)
    watched = Watched(load_study(args.study), results)
    command = [*args.workflow, f"--configfile={args.study}"]
    return follow(watched, command, retry=args.results is None)
