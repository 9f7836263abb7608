"""`python -m pipeline figure NAME --metrics FILE --out DIR`."""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path

from pipeline.figures import names, needing_verdicts

SUMMARY = "one figure as PDF, SVG and PNG from the table of metrics"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the stage."""
    parser.add_argument("name", choices=names(), help="file in pipeline/figures")
    parser.add_argument("--metrics", type=Path, required=True, help="metrics.parquet")
    parser.add_argument("--verdicts", type=Path, help="verdicts.json, for a figure on claims")
    parser.add_argument("--out", type=Path, required=True, help="folder for NAME.{pdf,svg,png}")


def run(args: argparse.Namespace) -> int:
    """Check equal work, draw, and write all three formats."""
    from pipeline.claims.write import verdicts_for
    from pipeline.metrics import table
    from pipeline.metrics.comparison import require_equal_work

    frame = table.read(args.metrics)
    module = importlib.import_module(f"pipeline.figures.{args.name}")
    require_equal_work(frame, module.COMPARES, f"figure {args.name}")
    from pipeline.figures import theme

    extra = verdicts_for(args.name, args.verdicts, needing_verdicts())
    theme.apply()
    theme.save(module.draw(frame, *extra), args.out, args.name)
    return 0
