"""`python -m pipeline figure NAME ... --metrics FILE --out DIR`."""

from __future__ import annotations

import argparse
import os
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline import options
from pipeline.figures import NARROW, catalogue
from pipeline.files import note_made

if TYPE_CHECKING:
    import pandas as pd

SUMMARY = "figures as PDF, PNG and SVG, for a wide and a narrow screen, from the table of metrics"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the stage."""
    catalogue.add_arguments(parser, "{pdf,svg,png}")
    parser.add_argument(
        "--processes", type=options.count(1, 1_000_000), default=1, help="figures drawn at once"
    )


def run(args: argparse.Namespace) -> int:
    """Check equal work, draw, write all three formats, and note their hashes."""
    _draw_all(args)
    names = [f"{name}{suffix}.*" for name in args.names for suffix in ("", NARROW)]
    note_made(path for name in names for path in args.out.glob(name))
    return 0


def _draw_all(args: argparse.Namespace) -> None:
    # All of them are forked at once, and Snakemake may give as many as it has no limit for.
    tasks = [(name, narrow) for name in args.names for narrow in (False, True)]
    processes = min(args.processes, len(tasks), os.cpu_count() or 1)
    if processes == 1:
        for name, narrow in tasks:
            _draw(args, name, narrow)
        return
    # Loaded once, before the fork. (A table is read in each: its reader has threads.)
    from pipeline.figures import theme  # noqa: F401

    with ProcessPoolExecutor(processes, get_context("fork")) as pool:
        for drawn in [pool.submit(_draw, args, *task) for task in tasks]:
            drawn.result()


def _draw(args: argparse.Namespace, name: str, narrow: bool) -> None:
    from pipeline.figures import sheets, theme
    from pipeline.metrics.select import unchanged

    theme.apply()
    frame, shown = _frames(args.metrics)
    for _, module, (_, *verdicts) in catalogue.load([name], frame, args.verdicts):
        with unchanged(shown), sheets.narrow() if narrow else nullcontext():
            figure = module.draw(shown, *verdicts)
            if narrow:
                theme.save(figure, args.out, name + NARROW, formats=["svg"])
            else:
                theme.save(figure, args.out, name)


@lru_cache(maxsize=1)
def _frames(metrics: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The table, and as figures show it; read once in each process."""
    from pipeline.metrics import table
    from pipeline.metrics.printed import printable

    frame = table.read(metrics)
    return frame, printable(frame)
