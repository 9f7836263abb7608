"""`python -m pipeline page --study --metrics --figures --tables --runs --out`.

`--verdicts` too, where the study names claims.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from urllib.parse import quote

from pipeline import options

SUMMARY = "one self-contained HTML page: verdicts, figures, tables and every run"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the stage."""
    parser.add_argument("--study", type=options.study, required=True, help=options.STUDY)
    parser.add_argument("--metrics", type=options.path, required=True, help="metrics.parquet")
    parser.add_argument(
        "--verdicts", type=options.path, help="verdicts.json, where the study has claims"
    )
    parser.add_argument(
        "--figures", type=options.folder, required=True, help="folder of the figures"
    )
    parser.add_argument("--tables", type=options.folder, required=True, help="folder of the tables")
    parser.add_argument(
        "--runs", type=options.folder, required=True, help="folder <cell>/n<nodes>/r<repeat>"
    )
    parser.add_argument("--out", type=options.new_file, required=True, help="report.html to write")


def run(args: argparse.Namespace) -> int:
    """Collect, fill the template, write the page."""
    from pipeline.claims.write import read_verdicts
    from pipeline.files import note_made, write_text
    from pipeline.metrics import table
    from pipeline.page.page import Folders, render
    from pipeline.study.load import load_study

    study = load_study(args.study)
    verdicts = read_verdicts(args.verdicts, study.name) if args.verdicts else []
    beside = os.path.relpath(args.runs, Path(args.out).parent)
    folders = Folders(args.figures, args.tables, args.runs, quote(Path(beside).as_posix()))
    page = render(study, table.read(args.metrics, study.name), verdicts, folders)
    write_text(args.out, page)
    note_made([args.out])
    return 0
