"""`python -m pipeline table NAME --metrics FILE --out DIR`."""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path

from pipeline.tables import captions, names, needing_verdicts

SUMMARY = "one table as LaTeX, Markdown, CSV and HTML from the table of metrics"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the stage."""
    parser.add_argument("name", choices=names(), help="file in pipeline/tables")
    parser.add_argument("--metrics", type=Path, required=True, help="metrics.parquet")
    parser.add_argument("--verdicts", type=Path, help="verdicts.json, for a table of claims")
    parser.add_argument("--out", type=Path, required=True, help="folder for NAME.{tex,md,csv,html}")


def run(args: argparse.Namespace) -> int:
    """Check equal work where cells are compared, and write all formats."""
    from pipeline.claims.write import verdicts_for
    from pipeline.metrics import table
    from pipeline.metrics.comparison import require_equal_work
    from pipeline.tables.write import write_all

    frame = table.read(args.metrics)
    module = importlib.import_module(f"pipeline.tables.{args.name}")
    require_equal_work(frame, module.COMPARES, f"table {args.name}")
    raw = module.build(frame, *verdicts_for(args.name, args.verdicts, needing_verdicts()))
    write_all(raw, module.show(raw), captions()[args.name], args.out, args.name)
    return 0
