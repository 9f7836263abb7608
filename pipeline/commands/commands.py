"""`python -m pipeline commands --study smoke`: what each run of a study would start, run by run.

For every cell and node count it prints the commands of the first repeat as `train` starts them from
the host; what a start decides (FIRST_NODE and PORT where the nodes meet, its TOKEN) is left open.
Where Snakemake has entered the image for a run on one machine, the part up to the image falls away.
"""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from pipeline import options, strategies
from pipeline.launch.slurm.request import request
from pipeline.launch.torchrun import Place, RunPaths, commands
from pipeline.machine import image as container
from pipeline.machine.facts import usable_cores
from pipeline.study.expansion import expand
from pipeline.study.load import load_study
from pipeline.study.spec import RunSpec

SUMMARY = "print the commands that the runs of a study start"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the stage."""
    parser.add_argument("--study", type=options.study, required=True, help=options.STUDY)
    parser.add_argument("--image", type=options.path, help="container image that the ranks run in")


def run(args: argparse.Namespace) -> int:
    """Print a heading and the commands for each cell and node count."""
    study = load_study(args.study)
    results = Path("results", study.name).resolve()
    for spec in expand(study):
        if spec.repeat == 0:
            print(f"# {spec.run_id}: {_resources(spec)}")
            for command in _commands(spec, results, args.image):
                print(shlex.join(command))
    return 0


def _resources(spec: RunSpec) -> str:
    asked = request(spec)
    return (
        f"nodes {asked.nodes}, on each {asked.gpus} GPUs and {asked.memory_mb} MiB; "
        f"{asked.minutes} minutes"
    )


def _commands(spec: RunSpec, results: Path, image: Path | None) -> tuple[tuple[str, ...], ...]:
    layout = strategies.load(spec.strategy, spec.options).layout(spec.world)
    folder = results / "runs" / spec.run_id.partition("/")[2]
    paths = RunPaths(folder / "spec.json", results / "tokens", folder)
    scheduler = request(spec).srun if spec.world.num_machines > 1 else ()
    place = Place(usable_cores(), "PORT", "FIRST_NODE", scheduler, image, "TOKEN")
    digest = container.required_digest(spec, image)
    return commands(spec, layout, paths, place, digest, spec.world.network)
