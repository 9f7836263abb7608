"""`python -m pipeline figure NAME ... --metrics FILE --out DIR`."""

from __future__ import annotations

import argparse
import os
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context

from pipeline import options
from pipeline.figures import NARROW, catalogue

SUMMARY = "figures as PDF, PNG and SVG, for a wide and a narrow screen, from the table of metrics"


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
        _draw(args, args.names)
        return 0
    # Loaded once, before the fork. (A table is read in each: its reader has threads.)
    from pipeline.figures import theme  # noqa: F401

    with ProcessPoolExecutor(processes, get_context("fork")) as pool:
        list(pool.map(partial(_draw, args), ([name] for name in args.names)))
    return 0


def _draw(args: argparse.Namespace, names: list[str]) -> None:
    from pipeline.figures import sheets, theme
    from pipeline.metrics.printed import printable

    theme.apply()
    for name, module, (frame, *verdicts) in catalogue.load(names, args.metrics, args.verdicts):
        inputs = [printable(frame), *verdicts]
        theme.save(module.draw(*inputs), args.out, name)
        with sheets.narrow():
            theme.save(module.draw(*inputs), args.out, name + NARROW, formats=["svg"])
