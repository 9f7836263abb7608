"""Which layouts of the published GPT-2 and GPT-3 sizes fit how many devices: arithmetic, no torch.

The shapes are in `pipeline/reference/models.json`, each with its source. Every strategy file is
asked for its settings on that many devices (`Strategy.settings`) and for its footprint.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from pipeline import reference, strategies
from pipeline.errors import StudyError, UnsupportedError
from pipeline.models import num_parameters
from pipeline.planner.plan import CellPlan, plan_study
from pipeline.resolved import ResolvedRun, resolve
from pipeline.study.spec import ModelSpec, OptimiserSpec, RunSpec, WorkloadSpec, WorldSpec

DEVICES_OF_A_NODE = 8
MOST_DEVICES = 1024
SMALLEST, LARGEST = 40e6, 10e12
"""Parameters of a size that is not published: from one of few layers to ten times any known."""
GPT3_CONTEXT = 2048
ADAMW = OptimiserSpec("adamw", 6e-4, 0.9, 0.95, 1e-8, 0.1, 1.0, "linear", 2000)


@dataclass(frozen=True)
class Size:
    """A published model; `source` is one line for a reader."""

    id: str
    model: ModelSpec
    source: str


@dataclass(frozen=True)
class Candidate:
    """One way to lay a model out, as a run, and what a rank of it needs."""

    size: Size
    run: ResolvedRun
    plan: CellPlan

    @property
    def name(self) -> str:
        """`sharded stage=3`: knobs that are set and by which settings differ; `mesh` has sizes."""
        strategy = self.run.strategy
        axes = {name for name, _ in self.run.layout.axes} | {"ranks", "axes"}
        varied = dict.fromkeys(k for options in strategy.settings(MOST_DEVICES) for k in options)
        knobs = {k: getattr(strategy, k) for k in varied if k not in axes}
        words = (k if v is True else f"{k}={v}" for k, v in knobs.items() if v)
        return " ".join([self.run.spec.strategy, *words])

    @property
    def mesh(self) -> str:
        """`data 4 x tensor 2`, without axes of one rank."""
        axes = self.run.layout.axes
        return " x ".join(f"{n} {size}" for n, size in axes if size > 1) or "one device"


@cache
def sizes(part: str = "models") -> tuple[Size, ...]:
    """The published sizes of the table, or those `further` ones beside it, the smallest first."""
    path = Path(reference.__file__).with_name("models.json")
    content = json.loads(path.read_text(encoding="utf-8"))
    published = []
    for entry in content[part]:
        shape = {k: v for k, v in entry.items() if k not in ("id", "document", "note")}
        source = content["documents"][entry["document"]]
        published.append(
            Size(entry["id"], ModelSpec("gpt2", **shape), f"{source['title']}, {source['where']}")
        )
    return tuple(published)


def size_of(name: str) -> Size:
    """The model of a size such as `1.3B` or `350M`: a published one, or a shape on GPT-3's curve.

    Its width lies between those of the two neighbours in GPT-3's table, by the logarithm of their
    parameters, as a multiple of eight heads of 128 (of four heads of 64 under a width of 2048); its
    depth brings the parameters nearest to the size. Beyond the table the width grows with the cube
    root. Raises StudyError for what is no size, or one that no such model has.
    """
    known = (*sizes(), *sizes("further"))
    for one in known:
        if one.id == name:
            return one
    parts = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)([MB])", name)
    wanted = float(parts[1]) * {"M": 1e6, "B": 1e9}[parts[2]] if parts else 0.0
    if not SMALLEST <= wanted <= LARGEST:
        raise StudyError(
            f"size {name[:60]!r} is none; write parameters in millions or billions from "
            f"{SMALLEST / 1e6:g}M to {LARGEST / 1e9:g}B, as 350M or 1.3B"
        )
    curve = sorted(
        (num_parameters(one.model), one.model.width)
        for one in known
        if one.model.context == GPT3_CONTEXT
    )
    below = max((point for point in curve if point[0] <= wanted), default=None)
    above = min((point for point in curve if point[0] > wanted), default=None)
    if below and above:
        share = math.log(wanted / below[0]) / math.log(above[0] / below[0])
        width = below[1] * (above[1] / below[1]) ** share
    else:
        end = below or curve[0]
        width = end[1] * (wanted / end[0]) ** (1 / 3)
    head, heads = (128, 8) if width >= 2048 else (64, 4)
    num_heads = heads * max(1, round(width / (head * heads)))
    model = ModelSpec("gpt2", 1, head * num_heads, num_heads, GPT3_CONTEXT, 50257)
    a_layer = num_parameters(replace(model, num_layers=2)) - num_parameters(model)
    depth = 1 + max(0, round((wanted - num_parameters(model)) / a_layer))
    return Size(name, replace(model, num_layers=depth), "Shape on the curve of GPT-3's table 2.1")


def world_of(devices: int) -> WorldSpec:
    """GPUs on full nodes of eight, or on one; raises StudyError for a number that fills none."""
    nodes = max(1, devices // DEVICES_OF_A_NODE)
    if not 1 <= devices <= MOST_DEVICES or (devices > DEVICES_OF_A_NODE and devices % 8):
        raise StudyError(
            f"{devices} devices are not 1 to {DEVICES_OF_A_NODE} or a multiple of "
            f"{DEVICES_OF_A_NODE} up to {MOST_DEVICES}; give one of these with --devices"
        )
    return WorldSpec(nodes, devices // nodes, "cuda", "nccl", "real")


def layouts(
    size: Size, devices: int, precision: str, *, recompute: bool = False
) -> list[Candidate]:
    """Every layout of a model that exists on so many devices, in the order of the strategies.

    One sequence is a micro-batch, and each device has one in a step. A strategy of one device is
    planned on one. What cannot train in the precision, recompute activations where asked to, or cut
    the model, as a pipeline of more stages than layers, is left out, and of several settings with
    one name and mesh all but the first.
    """
    candidates: dict[tuple[str, str], Candidate] = {}
    settings = [
        (name, options)
        for name in strategies.names()
        for options in strategies.load(name, {}).settings(devices)
    ]
    for name, options in settings:
        spec = RunSpec(
            study="sizes",
            cell=f"{size.id}-{name}",
            strategy=name,
            precision=precision,
            world=world_of(devices),
            model=size.model,
            optimiser=ADAMW,
            workload=WorkloadSpec(devices, 1, 2, 1, "strong", 0, recompute),
            repeat=0,
            seed=0,
            options=options,
        )
        try:
            run = resolve(spec)
        except StudyError:  # it has no layout on several devices
            work = replace(spec.workload, global_batch=1)
            run = resolve(replace(spec, world=world_of(1), workload=work))
        try:
            run.strategy.check_precision(precision)
            run.strategy.check_spec(run.spec)
        except (StudyError, UnsupportedError):
            continue
        pieces = run.spec.world.size // run.layout.data_parallel
        work = replace(run.spec.workload, accumulation_steps=pieces)
        run = replace(run, spec=replace(run.spec, workload=work))
        (plan,) = plan_study([run.spec])
        one = Candidate(size, run, plan)
        candidates.setdefault((one.name, one.mesh), one)
    return list(candidates.values())
