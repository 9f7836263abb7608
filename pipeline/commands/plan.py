"""`python -m pipeline plan --study smoke --device-memory 16GiB`: what a study will need.

For each cell and node count: the predicted memory of the largest rank, whether it fits the device,
and an upper bound of the time. `--model-sizes --devices 64 --device a100-80` shows which layouts
of GPT-2 and GPT-3 fit so many GPUs, in one table; `--size 175B` has the parts of each. Nothing is
started and no torch is loaded.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence

from pipeline import options
from pipeline.accept import accept
from pipeline.errors import CorpusError, StudyError
from pipeline.planner.memory import MEBIBYTE
from pipeline.planner.plan import GIBIBYTE, MARGIN, CellPlan, plan_study
from pipeline.planner.sizes import MOST_DEVICES, layouts, sizes
from pipeline.planner.tables import align, best_of, parts_of, which_fit
from pipeline.study.expansion import expand
from pipeline.study.load import load_study
from pipeline.study.profiling import profiled
from pipeline.study.spec import PRECISIONS
from pipeline.study.study import Study

SUMMARY = "what a study will need: memory of every cell, runs, time and GPU hours"
# Memory in GiB as the makers' data sheets name it; the driver keeps some of it.
DEVICES = {
    "v100-16": 16, "v100-32": 32, "a100-40": 40, "a100-80": 80, "h100-80": 80, "h200-141": 131,
}  # fmt: skip
_UNITS = {"MB": 10**6, "GB": 10**9, "MIB": MEBIBYTE, "GIB": GIBIBYTE}
_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?(MB|GB|MiB|GiB)", re.IGNORECASE | re.ASCII)
MAX_SIZE = 2**60
"""Bytes: more than any machine has."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the stage."""
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--study", type=options.study, help=options.STUDY)
    what.add_argument(
        "--model-sizes", action="store_true", help="layouts of GPT-2 and GPT-3, 124 M to 175 B"
    )
    parser.add_argument(
        "--devices",
        type=options.count(1, MOST_DEVICES),
        help="with --model-sizes: how many GPUs (default 8)",
    )
    parser.add_argument("--precision", choices=PRECISIONS, help="with --model-sizes (default bf16)")
    parser.add_argument(
        "--recompute", action="store_true", help="with --model-sizes: activations are recomputed"
    )
    parser.add_argument(
        "--size",
        choices=[one.id for one in sizes()],
        help="with --model-sizes: this one alone, and what its memory is made of",
    )
    memory = parser.add_mutually_exclusive_group()
    memory.add_argument(
        "--device-memory", metavar="SIZE", help="of one GPU, or of a machine of CPUs: 16GiB"
    )
    memory.add_argument("--device", choices=DEVICES, help="GPU whose memory is known here")


def run(args: argparse.Namespace) -> int:
    """Print a table of parts, verdicts and costs."""
    limit = _limit(args)
    if args.model_sizes:
        return _model_sizes(args, limit)
    for option in ("devices", "precision", "size", "recompute"):
        if getattr(args, option) not in (None, False):
            raise StudyError(f"--{option} belongs to --model-sizes; leave it out, or --study")
    study = load_study(args.study)
    # A study is planned where its corpus need not be.
    accept(study, has_tokens=True)
    plans = plan_study([*expand(study), *profiled(study)])
    if args.device and plans[0].spec.world.device == "cpu":
        raise StudyError(
            f"study {study.name} runs on CPUs, {args.device} is a GPU; "
            "give --device-memory of a machine"
        )
    print(f"{study.name}: {study.title}\n")
    for line in align([_HEADINGS, *(_row(plan, limit) for plan in plans)]):
        print(line)
    notes = [*_notes(plans, limit), *_repeats_note(study), *_corpus_note(study)]
    print("\n" + "\n".join(notes))
    return 0


def _model_sizes(args: argparse.Namespace, limit: int | None) -> int:
    """Print which layouts of each published size fit, or the parts of one size's."""
    devices, precision = args.devices or 8, args.precision or "bf16"
    asked = [one for one in sizes() if args.size in (None, one.id)]
    found = {one: layouts(one, devices, precision, recompute=args.recompute) for one in asked}
    table = which_fit(found, limit) if args.size is None else parts_of(found[asked[0]], limit)
    print("\n".join([*table, "", *best_of(found, limit), ""]))
    again = ", activations recomputed" if args.recompute else ""
    print(
        f"{devices} GPUs, {precision}{again}, one sequence a micro-batch and a device. Memory in "
        "GiB of the rank that needs most, by arithmetic"
        + (
            "; --size has its parts. A dash: no such layout."
            if args.size is None
            else "; gradients and activations do not peak together, so the peak is less than the "
            "sum. Base: context and libraries of a GPU, assumed."
        )
    )
    if limit is None:
        print("Whether it fits: give --device-memory or --device.")
    else:
        share = f"{100 * MARGIN['cuda']:g} %"
        print(f"Within {share} of {limit / GIBIBYTE:.4g} GiB is tight.")
    return 0


def parse_size(text: str) -> int:
    """Bytes of `16GiB`, `512 MiB` or `16GB`; raises StudyError on anything else."""
    found = _SIZE.fullmatch(text.strip())
    size = float(found[1]) * _UNITS[found[2].upper()] if found else 0.0
    if not 1 <= size <= MAX_SIZE:
        raise StudyError(
            f"memory {text[:60]!r} is no size; write a number over 0 and a unit, as 16GiB"
        )
    return round(size)


def _limit(args: argparse.Namespace) -> int | None:
    if args.device:
        return DEVICES[args.device] * GIBIBYTE
    return None if args.device_memory is None else parse_size(args.device_memory)


_HEADINGS = (
    "cell", "nodes", "ranks", "parameters", "gradients", "optimiser", "buffers", "activations",
    "loss", "base", "peak", "formula 24", "needed", "verdict", "runs", "hours", "GPU hours",
)  # fmt: skip


def _row(plan: CellPlan, limit: int | None) -> tuple[str, ...]:
    spec, m = plan.spec, plan.memory
    parts = (m.parameters, m.gradients, m.optimiser, m.buffers,
             m.activations + m.recomputed, m.logits, m.base, m.peak,
             plan.formula_bytes, plan.needed_bytes)  # fmt: skip
    return (
        spec.cell,
        str(spec.world.nodes),
        str(spec.world.size),
        *(f"{part / MEBIBYTE:,.0f}" for part in parts),
        "-" if limit is None else plan.verdict(limit),
        str(plan.num_runs),
        f"{plan.hours:.1f}",
        f"{plan.hours * plan.gpus:.1f}",
    )


def _notes(plans: Sequence[CellPlan], limit: int | None) -> list[str]:
    cpu = plans[0].spec.world.device == "cpu"
    runs, hours = sum(p.num_runs for p in plans), sum(p.hours for p in plans)
    gpu_hours = sum(p.hours * p.gpus for p in plans)
    notes = [
        "Memory in MiB of the rank that needs most. Gradients and activations do not peak together,"
        " so the peak is less than the sum.",
        "Needed: " + ("all ranks of one machine." if cpu else "one GPU, with its context."),
        "Formula 24 is the study's own and has no base.",
        f"At most {runs} runs, {hours:.1f} hours by their time limits, {gpu_hours:.1f} GPU hours.",
    ]
    if idle := [p for p in plans if p.idle_share is not None and not p.spec.profile]:
        shares = ", ".join(
            f"{p.spec.cell} on {p.spec.world.size} ranks {100 * (p.idle_share or 0):.0f} %"
            for p in idle
        )
        notes.append(f"Idle in a step by the formula of the schedule: {shares}.")
    if limit is None:
        return [*notes, "Whether it fits: give --device-memory or --device."]
    bad = [p for p in plans if p.verdict(limit) != "fits"]
    share = f"{100 * MARGIN[plans[0].spec.world.device]:g} %"
    count = f"{len(plans) - len(bad)} of {len(plans)} fit {limit / GIBIBYTE:.4g} GiB"
    return [*notes, f"{count}; within {share} of it is tight."]


def _corpus_note(study: Study) -> list[str]:
    """What keeps the workflow from starting here, as `check` says it too."""
    try:
        accept(study)
    except CorpusError as error:
        return [f"warning: the study cannot start here: {error}"]
    return []


def _repeats_note(study: Study) -> list[str]:
    """A warning where so few repeats cannot decide which cell is faster, whatever they find."""
    from pipeline.metrics.contrasts import fewest_repeats, largest_family

    pairs, what = largest_family(study)
    most = study.repeats.at_most
    if pairs == 0 or most >= (needed := fewest_repeats(pairs)):
        return []
    return [
        f"warning: {most} repeats cannot decide which cell is faster, however far apart they are: "
        f"the rank test corrects for {pairs} comparisons ({what}) and needs {needed}; "
        f"set repeats to {needed} or more, or have fewer cells"
    ]
