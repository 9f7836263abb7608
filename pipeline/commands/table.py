"""`python -m pipeline table NAME ... --metrics FILE --out DIR`."""

from __future__ import annotations

import argparse

from pipeline.tables import captions, catalogue

SUMMARY = "tables as LaTeX, Markdown, CSV and HTML from the table of metrics"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the stage."""
    catalogue.add_arguments(parser, "{tex,md,csv,html}")


def run(args: argparse.Namespace) -> int:
    """Check equal work where cells are compared, write all formats, and note their hashes."""
    from pipeline.files import note_made
    from pipeline.metrics import table
    from pipeline.metrics.printed import short_names
    from pipeline.metrics.select import unchanged
    from pipeline.tables.write import write_all

    frame = table.read(args.metrics)
    with unchanged(frame):
        for name, module, inputs in catalogue.load(args.names, frame, args.verdicts):
            raw = module.build(*inputs)
            write_all(raw, module.show(raw), captions()[name], args.out, name, short_names(frame))
    note_made(path for name in args.names for path in args.out.glob(f"{name}.*"))
    return 0
