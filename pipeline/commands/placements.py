"""`python -m pipeline placements --study layouts --cell annotated`: where DTensor places tensors.

A table of the parameters and of every module's output, an axis per column, for one cell on the most
nodes that it has (or `--nodes`). No rank is started: the ranks are imitated by one process.
"""

from __future__ import annotations

import argparse

from pipeline import options
from pipeline.errors import StudyError
from pipeline.study.expansion import expand
from pipeline.study.load import load_study
from pipeline.study.spec import NODES_OF_ONE_MACHINE, RunSpec

SUMMARY = "where the tensors of an annotated cell are placed on its mesh"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the stage."""
    parser.add_argument("--study", type=options.study, required=True, help=options.STUDY)
    parser.add_argument("--cell", required=True, help="name of the cell")
    parser.add_argument(
        "--nodes", type=options.count(1, NODES_OF_ONE_MACHINE), help="instead of the most it has"
    )


def run(args: argparse.Namespace) -> int:
    """Print the table."""
    spec = _spec(args)
    from pipeline import strategies
    from pipeline.parallel.annotations import alike
    from pipeline.training.placements import propagate

    strategies.check([spec])
    found = propagate(spec).placements
    axes = [
        f"{name} ({size})"
        for name, size in strategies.load(spec.strategy, spec.options).layout(spec.world).axes
    ]
    print(f"{spec.study}/{spec.cell} on {spec.world.size} ranks\n")
    for kind, tensors in found.items():
        print("| " + " | ".join([kind, *axes]) + " |\n" + "|---" * (len(axes) + 1) + "|")
        for name, words in alike(tensors).items():
            print("| " + " | ".join([f"`{name}`", *words]) + " |")
        print()
    return 0


def _spec(args: argparse.Namespace) -> RunSpec:
    runs = expand(load_study(args.study))
    cells = list(dict.fromkeys(spec.cell for spec in runs))
    if args.cell not in cells:
        raise StudyError(f"no cell {args.cell[:60]!r}; use one of {', '.join(cells)}")
    sizes = {spec.world.nodes: spec for spec in runs if spec.cell == args.cell}
    nodes = args.nodes or max(sizes)
    if nodes not in sizes:
        counts = ", ".join(map(str, sorted(sizes)))
        raise StudyError(f"cell {args.cell} has no {nodes} nodes; use one of {counts}")
    return sizes[nodes]
