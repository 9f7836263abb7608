"""`python -m pipeline figure NAME ... --metrics FILE --out DIR`."""

from __future__ import annotations

import argparse
import os
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline import options
from pipeline.figures import catalogue

if TYPE_CHECKING:
    import pandas as pd

SUMMARY = "figures as PDF, PNG and SVG, from the table of metrics"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the stage."""
    catalogue.add_arguments(parser, "{pdf,svg,png}")
    parser.add_argument(
        "--processes", type=options.count(1, 1_000_000), default=1, help="figures drawn at once"
    )


def run(args: argparse.Namespace) -> int:
    """Check equal work, draw, and write all three formats."""
    # All of them are forked at once, and Snakemake may give as many as it has no limit for.
    processes = min(args.processes, len(args.names), os.cpu_count() or 1)
    if processes == 1:
        for name in args.names:
            _draw(args, name)
        return 0
    # Loaded once, before the fork. (A table is read in each: its reader has threads.)
    from pipeline.figures import theme  # noqa: F401

    with ProcessPoolExecutor(processes, get_context("fork")) as pool:
        for drawn in [pool.submit(_draw, args, name) for name in args.names]:
            drawn.result()
    return 0


def _draw(args: argparse.Namespace, name: str) -> None:
    from pipeline.figures import theme
    from pipeline.metrics.select import unchanged

    theme.apply()
    frame, shown = _frames(args.metrics)
    for _, module, (_, *verdicts) in catalogue.load([name], frame, args.verdicts):
        with unchanged(shown):
            theme.save(module.draw(shown, *verdicts), args.out, name)


@lru_cache(maxsize=1)
def _frames(metrics: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The table, and as figures show it; read once in each process."""
    from pipeline.metrics import table
    from pipeline.metrics.printed import printable

    frame = table.read(metrics)
    return frame, printable(frame)
