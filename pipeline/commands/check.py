"""`python -m pipeline check --study smoke`: may this study start? `make paper` asks first.

Prints the folder of its results. Snakemake reads a study file with a reader of its own, before any
rule of ours: what is wrong with the file is better found here, in one line.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from pipeline import options

SUMMARY = "check a study file and the files of its corpus, and print where its results lie"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the stage."""
    parser.add_argument("--study", type=options.study, required=True, help=options.STUDY)


def run(args: argparse.Namespace) -> int:
    """Everything that can be said before a first job; raises SamestepError."""
    from pipeline.accept import accept_to_run
    from pipeline.study.load import load_study

    study = load_study(args.study)
    accept_to_run(study)
    print(Path("results", study.name))
    return 0
