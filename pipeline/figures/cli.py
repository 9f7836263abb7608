"""`python -m pipeline figure NAME --metrics FILE --out DIR`."""

from __future__ import annotations

import argparse

from pipeline.figures import catalogue

SUMMARY = "one figure as PDF, SVG and PNG from the table of metrics"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the stage."""
    catalogue.add_arguments(parser, "{pdf,svg,png}")


def run(args: argparse.Namespace) -> int:
    """Check equal work, draw, and write all three formats."""
    module, inputs = catalogue.load(args)
    from pipeline.figures import theme

    theme.apply()
    theme.save(module.draw(*inputs), args.out, args.name)
    return 0
