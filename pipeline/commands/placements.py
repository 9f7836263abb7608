"""The command `placements`: where tensors of a cell lie, or the time that placing them takes."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from pipeline import options, strategies
from pipeline.commands import STUDY, needed, option, together
from pipeline.errors import StudyError
from pipeline.metrics import statistics
from pipeline.resolved import ResolvedRun, first_runs
from pipeline.text import pipe_table

add_arguments = together(
    STUDY,
    needed("--cell", str, "name of the cell"),
    option("--devices", options.counts(1, 4096), "time it on so many each, as 8,128,2048"),
)


def run(args: argparse.Namespace) -> None:
    """Print a table for each kind of tensors, or one of seconds on several numbers of devices."""
    runs = first_runs(options.loaded(args.study))
    sizes = [run for run in runs if run.spec.cell == args.cell]
    if not sizes:
        cells = ", ".join(dict.fromkeys(run.spec.cell for run in runs))
        raise StudyError(f"no cell {args.cell[:60]!r}; use one of {cells}")
    run = max(sizes, key=lambda run: run.spec.world.nodes)
    strategies.check([run.spec])
    if args.devices:
        _print_seconds(run, args.devices)
        return
    from pipeline.training.placements import alike, propagate  # which import torch

    placed = propagate(run)
    print(f"{run.spec.study}/{args.cell} on {run.spec.world.size} ranks\n")
    axes = [f"{name} ({size})" for name, size in run.layout.axes]
    for kind, tensors in placed.items():
        rows = ([f"`{name}`", *words] for name, words in alike(tensors).items())
        print(pipe_table([kind, *axes], rows) + "\n")


def _print_seconds(run: ResolvedRun, counts: Sequence[int]) -> None:
    """Print the seconds of placing on so many devices each, and how they grow with the devices."""
    from pipeline.training.placements import on_devices, seconds_to_place

    worlds = [on_devices(run, count) for count in counts]
    rounds = seconds_to_place(worlds, statistics.MIN_REPEATS)
    rows = []
    for world, seconds in zip(worlds, zip(*rounds, strict=True), strict=True):
        mesh = " x ".join(f"{name} {size}" for name, size in world.layout.axes)
        one = statistics.values_interval(seconds)
        numbers = (f"{value:.3f}" for value in (one.value, one.low, one.high))
        rows.append((str(world.layout.num_processes), mesh, *numbers))
    print(f"{run.spec.study}/{run.spec.cell}: CPU seconds to place all tensors\n")
    print(pipe_table(("devices", "axes", "median", "low", "high"), rows))
    if len(worlds) > 1:
        slopes = [statistics.log_slope(counts, seconds) for seconds in rounds]
        one = statistics.values_interval(slopes)
        print(
            f"\nslope of log seconds over log devices {one.value:.4f} "
            f"[{one.low:.4f}, {one.high:.4f}], {one.how}"
        )
