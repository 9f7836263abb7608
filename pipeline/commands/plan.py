"""The command `plan`: what a study will need, or layouts ranked by their predicted step time."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace

import psutil

from pipeline import options
from pipeline.accept import accept
from pipeline.commands import flag, one_of, option, together
from pipeline.cost.constants import DEVICES, name_of
from pipeline.errors import SamestepError, StudyError
from pipeline.machine.facts import hardware
from pipeline.models import active_parameters, family, num_parameters
from pipeline.planner.auto import choose
from pipeline.planner.here import Calibration
from pipeline.planner.memory import GIBIBYTE, MARGIN, MEBIBYTE, CellPlan, plan_study
from pipeline.planner.ranking import Cluster, rank, table
from pipeline.planner.sizes import model_of
from pipeline.resolved import runs_of
from pipeline.study.expansion import every_run
from pipeline.study.load import load_study
from pipeline.study.spec import PRECISIONS, TIMED
from pipeline.text import align, plural

add_arguments = together(
    one_of(
        option("--study", options.study, options.STUDY),
        option("--model", str, "layouts on a cluster, by predicted step time, of GPT of this size "
               "(350M, 1.3B) or of a config.json of transformers", metavar="SIZE"),
        required=True,
    ),
    flag("--auto", "with --study: the layout that is predicted to be best, as a cell to paste"),
    option("--calibration", options.file,
           "with --auto, for a study on CPUs: what `calibrate` has written"),
    option("--nodes", options.count(1, 128), "with --model (default 1)"),
    option("--gpus-per-node", options.count(1, 16), "with --model (default 8, or as here)"),
    option("--link", options.rate, "with --model or --auto: of a node in all, as 200gbit; ZeRO 2 "
           "and 3 over several nodes get two GPUs' shares of it", metavar="RATE"),
    option("--batch", options.count(1, 100_000), "with --model: sequences (default 512)"),
    option("--context", options.count(1, 10**6), "with --model: positions (default: all it has)"),
    option("--precision", str, "with --model (default bf16) or --auto", choices=PRECISIONS),
    one_of(
        option("--device-memory", options.memory, "of one GPU, or of a machine of CPUs: 16GiB",
               metavar="SIZE"),
        option("--device", str, "GPU (with --model by default this machine's)", choices=DEVICES),
    ),
)  # fmt: skip


def run(args: argparse.Namespace) -> None:
    """Print a table of parts, verdicts and costs, or a ranking of layouts."""
    if args.model is not None:
        _ranking(args)
        return
    limit = DEVICES[args.device] * GIBIBYTE if args.device else args.device_memory
    if args.auto:
        _auto(args, limit)
        return
    options.check_mode(args, "--study", "study device device_memory")
    study = load_study(args.study)
    # A study is planned where its corpus need not be.
    accept(study, has_tokens=True)
    plans = plan_study(runs_of(study, every_run))
    if args.device and plans[0].spec.world.device == "cpu":
        raise StudyError(
            f"study {study.name} runs on CPUs, {args.device} is a GPU; "
            "give --device-memory of a machine"
        )
    from pipeline.metrics.contrasts import fewest_repeats, largest_family

    print(f"{study.name}: {study.title}\n")
    rows = [_row(plan, limit) for plan in plans]
    if not (of_bai := "bai2022" in study.claims):
        for row in rows:
            del row["formula 24"]
    print("\n".join(align([[*rows[0]], *([*row.values()] for row in rows)])))
    notes = _notes(plans, limit)
    if of_bai:
        notes.append("Formula 24 is that of Bai 2022, appendix C.4, and has no base.")
    pairs, what = largest_family(study)
    if pairs and study.repeats < (needed := fewest_repeats(pairs)):
        notes.append(
            f"warning: {study.repeats} repeats cannot decide which cell is faster, however far "
            f"apart they are: the rank test corrects for {pairs} comparisons ({what}) and needs "
            f"{needed}; set repeats to {needed} or more, or have fewer cells"
        )
    try:
        accept(study)
    except SamestepError as error:
        notes.append(f"warning: the study cannot start here: {error}")
    print("\n" + "\n".join(notes))


def _ranking(args: argparse.Namespace) -> None:
    """Print layouts of a model on a cluster that is not here, by predicted step time."""
    taken = "model device nodes gpus_per_node link batch context precision"
    options.check_mode(args, "--model", taken)
    gpus = [] if args.device else hardware()["gpus"]
    device = args.device or next(filter(None, map(name_of, gpus)), None)
    nodes, per_node = args.nodes or 1, args.gpus_per_node or len(gpus) or 8
    if device is None or (nodes > 1 and args.link is None):
        missing = "--device" if device is None else "--link"
        raise StudyError(f"--model needs {missing}; give it, as --device a100-80 --link 200gbit")
    cluster = Cluster(device, DEVICES[device], nodes, per_node, args.link or 0.0)
    model = model_of(args.model)
    model = replace(model, context=args.context or model.context)
    family(model).check(model, None)
    ranked = rank(model, cluster, args.batch or 512, args.precision or "bf16")
    shape, layers = family(model).shape(model), plural(model.num_layers, "layer")
    link = f", {args.link:g} Gbit/s a node in all" if args.link else ""
    print(
        f"{model.family}, {num_parameters(model) / 1e6:,.0f} M parameters: {layers} of width "
        f"{model.width}, {model.num_heads} heads, {shape.ffn} between, {model.context} positions; "
        f"global batch {args.batch or 512}, {args.precision or 'bf16'}, on {nodes} x {per_node} "
        f"{device} ({DEVICES[device]} GiB){link}\n"
    )
    print("\n".join(table(ranked)))


def _auto(args: argparse.Namespace, limit: int | None) -> None:
    """Print the layouts of a study by predicted step time, and the first as a cell."""
    study, calibration = load_study(args.study), None
    nodes, ranks = max(study.cluster.nodes), study.cluster.ranks_per_node
    on_cpus = study.cluster.device == "cpu"
    taken = "calibration device_memory" if on_cpus else "device link"
    mode = f"--auto and a study on {'CPUs' if on_cpus else 'GPUs'}"
    options.check_mode(args, mode, f"study auto precision {taken}")
    if on_cpus:
        if args.calibration is None:
            raise StudyError(
                f"study {study.name} runs on CPUs: --auto needs --calibration FILE, which "
                "`calibrate` writes"
            )
        calibration = Calibration.read(args.calibration, study)
        limit = limit or psutil.virtual_memory().total // nodes
    elif args.device is None or (nodes > 1 and not args.link):
        raise StudyError(
            f"study {study.name} runs on GPUs: --auto needs --device and of several nodes --link, "
            "as --device a100-80 --link 200gbit"
        )
    room, link = (limit or 0) / GIBIBYTE, args.link or 0.0
    if on_cpus and study.cluster.links:
        # The one that every cell is predicted over.
        link = study.cluster.links[0].rate_mbits / 1e3
    cluster = Cluster(args.device or "cpu", room, nodes, ranks, link)
    precision = args.precision or study.arms[0].precision
    print("\n".join(table(choose(study, cluster, precision, calibration))))


def _row(plan: CellPlan, limit: int | None) -> dict[str, str]:
    """A row of the table, of a cell and a node count, by its headings."""
    world, m = plan.spec.world, plan.memory
    parts = {
        "parameters": m.parameters, "gradients": m.gradients, "optimiser": m.optimiser,
        "buffers": m.buffers, "activations": m.activations + m.recomputed + m.within,
        "loss": m.logits, "base": m.base, "peak": m.peak, "formula 24": plan.formula_bytes,
        "needed": plan.needed_bytes,
    }  # fmt: skip
    return {
        "cell": plan.spec.cell, "nodes": str(world.nodes), "ranks": str(world.size),
        **{name: f"{part / MEBIBYTE:,.0f}" for name, part in parts.items()},
        "verdict": "-" if limit is None else plan.verdict(limit), "runs": str(plan.num_runs),
        "worst hours": f"{plan.hours:.1f}", "worst GPU hours": f"{plan.hours * plan.gpus:.1f}",
    }  # fmt: skip


def _notes(plans: Sequence[CellPlan], limit: int | None) -> list[str]:
    model, device = plans[0].spec.model, plans[0].spec.world.device
    hours, gpu_hours = sum(p.hours for p in plans), sum(p.hours * p.gpus for p in plans)
    notes = [
        "Memory in MiB of the rank that needs most. Gradients and activations do not peak together,"
        " so the peak is less than the sum.",
        "Needed: "
        + ("all ranks of one machine." if device == "cpu" else "one GPU, with its context."),
        "Worst case, no estimate (all runs reach their time limit): "
        f"{sum(p.num_runs for p in plans)} runs, {hours:.1f} hours, {gpu_hours:.1f} GPU hours.",
    ]
    every, active = num_parameters(model), active_parameters(model)
    if active < every:
        notes.append(
            f"A token uses {active:,} of {every:,} parameters: FLOPs are theirs, memory holds all."
        )
    idle = [
        f"{p.spec.cell} on {p.spec.world.size} ranks {100 * p.idle_share:.0f} %"
        for p in plans
        if p.idle_share is not None and p.spec.kind == TIMED
    ]
    if idle:
        notes.append(f"Idle in a step by the formula of the schedule: {', '.join(idle)}.")
    if limit is None:
        return [*notes, "Whether it fits: give --device-memory or --device."]
    fitting = sum(p.verdict(limit) == "fits" for p in plans)
    count = f"{fitting} of {len(plans)} fit {limit / GIBIBYTE:.4g} GiB"
    return [*notes, f"{count}; within {100 * MARGIN[device]:g} % of it is tight."]
