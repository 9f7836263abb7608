"""Layouts of a model on a cluster that is not here, by predicted step time, as cells of a study.

`python -m pipeline plan --model 1.3B --nodes 4 --gpus-per-node 8 --device a100-80 --link 200gbit`.
Data, tensor (inside a node) and pipeline axes, interleaving, ZeRO 1 to 3, micro-batch,
recomputation and fewer nodes; each strategy says which of them it can run (`Strategy.knobs`). Each
layout stands with the fastest micro-batch that fits. Times are predictions (docs/planner.md).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import yaml

from pipeline import models, strategies
from pipeline.cost.constants import Constants, content
from pipeline.cost.job import Job, Refused
from pipeline.cost.points import fits, kind_of
from pipeline.cost.predict import Prediction, predict
from pipeline.errors import StudyError, UnsupportedError
from pipeline.parallel.mesh import Degrees, divisors
from pipeline.planner.memory import predict as predict_memory
from pipeline.planner.sizes import ADAMW, Size
from pipeline.planner.tables import align
from pipeline.resolved import resolve
from pipeline.study.spec import RunSpec, WorkloadSpec, WorldSpec

LARGEST_MICRO = 64
CALIBRATED = 1.04
"""Ratio of steps that a calibration cannot tell apart: its median error is 3 to 4 %."""
MOST_NODES = 4096
SHOWN = 10
"""Rows of the table."""
_LINK = re.compile(r"(\d{1,6}(?:\.\d+)?) ?([gm])bit(?:/s)?", re.IGNORECASE | re.ASCII)


@dataclass(frozen=True)
class Cluster:
    """Nodes of devices; `link` is Gbit/s of a node in all."""

    hardware: str
    device_gib: float
    nodes: int
    gpus_per_node: int
    link: float


@dataclass(frozen=True)
class Ranked:
    """A layout with what is predicted of it; `cell` has what a study states to run it."""

    job: Job
    cell: Mapping[str, Any]
    prediction: Prediction

    @property
    def nodes(self) -> int:
        """Nodes that it takes."""
        return self.job.gpus // self.job.gpus_per_node

    @property
    def name(self) -> str:
        """`data 8 x tensor 4, ZeRO 1`."""
        job = self.job
        axes = (("data", job.dp), ("tensor", job.tp), ("pipeline", job.pp))
        mesh = " x ".join(f"{name} {size}" for name, size in axes if size > 1) or "one device"
        chunks = f", {job.vpp} chunks" if job.vpp > 1 else ""
        return mesh + chunks + (f", ZeRO {job.zero}" if job.zero else "")

    @property
    def parts(self) -> int:
        """Number of things that have to work together: axes, ZeRO, recomputation, micro-batches."""
        job = self.job
        axes = (job.dp, job.tp, job.pp, job.vpp)
        others = (job.zero > 0, job.zero > 2, job.recompute != "none", job.accum > 1)
        return sum(size > 1 for size in axes) + sum(others)

    @property
    def band(self) -> tuple[float, float]:
        """Seconds between which nine tenths of steps like this one lie."""
        low, high = band_of(self.job)
        return low * self.prediction.seconds, high * self.prediction.seconds


def band_of(job: Job) -> tuple[float, float]:
    """Ratios measured / predicted between which nine tenths of steps of this implementation lie."""
    # Of it one device alone was measured.
    known = "samestep" if job.gpus == 1 else ""
    low, high = content()["band"][kind_of(replace(job, framework=known), Constants())]
    return low, high


Predictor = Callable[[Job, Mapping[str, Any]], Prediction | None]
"""Prediction of a job, which the cell runs; None where it cannot run or be predicted."""


def gigabits(text: str) -> float:
    """Gbit/s of `200gbit`; raises StudyError on anything else."""
    match = _LINK.fullmatch(text.strip())
    rate = float(match[1]) * (1.0 if match[2].lower() == "g" else 1e-3) if match else 0.0
    if rate <= 0:
        raise StudyError(f"link {text[:60]!r} is no rate; write one of a node, as 200gbit")
    return rate


def rank(
    size: Size, cluster: Cluster, batch: int, precision: str, predicted: Predictor | None = None
) -> list[Ranked]:
    """The layouts that fit, the simplest of those that may be fastest first, then by seconds.

    May be fastest: the band reaches below what is predicted of the fastest; where a calibration
    predicts, no more than `CALIBRATED` above it. Raises StudyError where none fits, with what the
    least lacks and how many nodes would do.
    """
    best, least = _search(size, cluster, batch, precision, predicted)
    if not best:
        raise StudyError(_too_large(size, cluster, batch, precision, predicted, least))
    by_time = sorted(best.values(), key=lambda one: one.prediction.seconds)
    fastest = by_time[0].prediction.seconds
    close = [
        one
        for one in by_time
        if (one.prediction.seconds / CALIBRATED if predicted else one.band[0]) <= fastest
    ]
    first = min(close, key=lambda one: (one.parts, one.prediction.seconds))
    return [first, *(one for one in by_time if one is not first)]


def _search(
    size: Size, cluster: Cluster, batch: int, precision: str, predicted: Predictor | None
) -> tuple[dict[tuple[object, ...], Ranked], Ranked | None]:
    """The fastest that fits of each layout, and which of all needs least memory."""
    constants = Constants()
    best: dict[tuple[object, ...], Ranked] = {}
    least: Ranked | None = None
    for job, cell in jobs(size, cluster, batch, precision):
        try:
            prediction = predicted(job, cell) if predicted else predict(job, constants)
        except Refused as refused:
            raise StudyError(f"{refused}; give another --precision or --device") from None
        key = (job.gpus, job.dp, job.tp, job.pp, job.vpp, job.zero)
        if prediction is None or (
            key in best and best[key].prediction.seconds <= prediction.seconds
        ):
            continue
        if predicted is None:
            peak = _peak(size, batch, job, cell)
            if peak is None:
                continue
            prediction = replace(prediction, memory=peak)
        one = Ranked(job, cell, prediction)
        if least is None or prediction.gibibytes < least.prediction.gibibytes:
            least = one
        if fits(job, prediction):
            best[key] = one
    return best, least


def _peak(size: Size, batch: int, job: Job, cell: Mapping[str, Any]) -> float | None:
    """Bytes of the rank that needs most, as its strategy has them; None where it takes no such."""
    (nodes,) = cell["nodes"]
    spec = RunSpec(
        study="sizes", cell="auto", strategy=cell["strategy"], precision=cell["precision"],
        world=WorldSpec(nodes, job.gpus_per_node, "cuda", "nccl", "real"), model=size.model,
        optimiser=ADAMW, repeat=0, seed=0, options=cell["options"],
        workload=replace(WorkloadSpec(batch, 1, 2, 1, "strong", 0), **cell["workload"]),
    )  # fmt: skip
    try:
        resolve(spec).strategy.check_spec(spec)
    except StudyError:
        return None
    return float(max(predict_memory(spec, rank).peak for rank in {0, job.gpus - 1}))


def _too_large(
    size: Size, cluster: Cluster, batch: int, precision: str, predicted: Predictor | None,
    least: Ranked | None,
) -> str:  # fmt: skip
    """By how much nothing fits, and how many nodes of the same kind would do."""
    what = f"{cluster.nodes} x {cluster.gpus_per_node} devices of {cluster.device_gib:g} GiB"
    if least is None:
        return f"no layout of {size.id} exists on {what}; give a batch that more ranks divide"
    needs = (
        f"no layout of {size.id} fits {what}: the least, {least.name}, needs "
        f"{least.prediction.gibibytes:,.3g} GiB"
    )
    nodes = cluster.nodes
    while predicted is None and (nodes := 2 * nodes) <= MOST_NODES:
        # Of unknown links the seconds mean nothing, but the memory does.
        larger = replace(cluster, nodes=nodes, link=cluster.link or 100.0)
        fitting, _ = _search(size, larger, batch, precision, None)
        if fitting:
            one = min(fitting.values(), key=lambda one: (one.job.gpus, one.prediction.seconds))
            return f"{needs}; {one.nodes} nodes would do ({one.name})"
    return f"{needs}; give more nodes, or a smaller model"


@cache
def _knobs(degrees: Degrees, precision: str) -> tuple[str, Mapping[str, Any]] | None:
    """The strategy that runs a layout in a precision, and its options; None where none does."""
    for name in strategies.names():
        options = strategies.load(name, {}).knobs(degrees)
        if options is None:
            continue
        try:
            strategies.load(name, options).check_precision(precision)
        except UnsupportedError:
            continue
        return name, options
    return None


def jobs(
    size: Size, cluster: Cluster, batch: int, precision: str
) -> Iterator[tuple[Job, dict[str, Any]]]:
    """Every layout that a strategy can run, on as many nodes or fewer, and its cell."""
    for nodes in divisors(cluster.nodes):
        for degrees in _degrees(size, nodes * cluster.gpus_per_node, cluster, batch):
            knobs = _knobs(degrees, precision)
            if knobs is None:
                continue
            # Micro-batches of a pipeline are its own knob, all others the study's.
            pieces = 1 if "microbatches" in knobs[1] else degrees.microbatches
            # Not attention alone, which saves 4 bytes a head and token with fused kernels.
            for recompute in (False, True):
                work: dict[str, Any] = {"accumulation_steps": pieces}
                if recompute:
                    work["recompute"] = True
                cell = {"strategy": knobs[0], "precision": precision, "nodes": [nodes],
                        "options": dict(knobs[1]), "workload": work}  # fmt: skip
                yield job_of(size, cluster, nodes, degrees, batch, precision, recompute), cell


def _degrees(size: Size, gpus: int, cluster: Cluster, batch: int) -> Iterator[Degrees]:
    """Sizes of the axes, as many micro-batches as there can be, chunks of a pipeline.

    A tensor axis stays inside a node that has several devices. The depth of a pipeline need not
    divide the layers: its strategy gives the first stages one more.
    """
    model, micros = size.model, [2**n for n in range(LARGEST_MICRO.bit_length())]
    for tensor in divisors(cluster.gpus_per_node if cluster.gpus_per_node > 1 else gpus):
        for pipeline in divisors(gpus):
            if model.num_heads % tensor or gpus % (tensor * pipeline):
                continue
            data = gpus // (tensor * pipeline)
            if pipeline > model.num_layers or batch % data:
                continue
            own = batch // data
            for pieces in (own // micro for micro in micros if own % micro == 0):
                for chunks in (1, 2) if pipeline > 1 else (1,):
                    if chunks > 1 and (pieces % pipeline or chunks * pipeline > model.num_layers):
                        continue
                    for zero in range(4 if data > 1 else 1):
                        yield Degrees(data, tensor, pipeline, chunks, zero, pieces)


def job_of(
    size: Size, cluster: Cluster, nodes: int, degrees: Degrees, batch: int, precision: str,
    recompute: bool | str,
) -> Job:  # fmt: skip
    """A layout on so many nodes as the cost model has it; StudyError where it knows no shape."""
    model, shape = size.model, models.family(size.model).shape(size.model)
    return Job(
        hardware=cluster.hardware, device_gib=cluster.device_gib,
        gpus=nodes * cluster.gpus_per_node, gpus_per_node=cluster.gpus_per_node,
        node_net_gbps=cluster.link, bert=False, layers=model.num_layers, hidden=model.width,
        heads=model.num_heads, vocab=model.vocab_rows, seq=model.context, **shape._asdict(),
        dp=degrees.data,
        tp=degrees.tensor, pp=degrees.pipeline, vpp=degrees.chunks, zero=degrees.zero,
        shard=degrees.data, seq_parallel=False,
        micro=batch // degrees.data // degrees.microbatches, accum=float(degrees.microbatches),
        per_micro=False, precision=FORMATS.get(precision, precision),
        recompute=recompute if isinstance(recompute, str) else "full" if recompute else "none",
        flash=True, optimiser="adamw",
        framework="samestep", note="",
    )  # fmt: skip


FORMATS = {
    "bf16": "bf16 amp", "fp16": "fp16 amp", "amp_o1": "fp16 amp", "apex_o1": "fp16 amp",
    "amp_o2": "fp16", "apex_o2": "fp16",
}  # fmt: skip
"""A study's precisions as the model names them: autocast keeps weights in fp32."""


def table(ranked: list[Ranked]) -> list[str]:
    """The ranking as lines, and how far the answer may be trusted."""
    heads = "layout", "nodes", "micro", "recompute", "step s", "band s", "GiB", "tokens/s", "h/1e9"
    rows = []
    for one in ranked[:SHOWN]:
        job, seconds, (low, high) = one.job, one.prediction.seconds, one.band
        tokens = job.tokens * job.dp * job.accum
        rows.append(
            (
                one.name, str(one.nodes), str(job.micro), job.recompute, f"{seconds:.3g}",
                f"{low:.3g} to {high:.3g}", f"{one.prediction.gibibytes:.3g}",
                f"{tokens / seconds:,.0f}", f"{1e9 / tokens * seconds / 3600:.2f}",
            )
        )  # fmt: skip
    return [*align([heads, *rows]), "", *answer(ranked)]


def answer(ranked: list[Ranked]) -> list[str]:
    """The choice with its reasons, the runner-up with the margin, and the cell as YAML."""
    first, fastest = ranked[0], min(ranked, key=lambda one: one.prediction.seconds)
    of = first.prediction
    parts = {part: getattr(of, part) / of.seconds for part in WHY}
    most = sorted(parts, key=lambda part: -parts[part])[:2]
    shares = " and ".join(f"{WHY[part]} {parts[part]:.0%}" for part in most if parts[part] > 0.005)
    room = first.job.device_gib
    lines = [
        f"Choice of {len(ranked)} layouts that fit: {first.name} on {first.nodes} nodes, "
        f"{of.seconds:.3g} s a step, of which {shares}; {of.gibibytes:.3g}"
        + (f" of {room:.3g} GiB." if room else " GiB.")
    ]
    if first is not fastest:
        more = of.seconds / fastest.prediction.seconds - 1
        lines.append(
            f"It is the simplest that cannot be told from the fastest, {fastest.name}: no "
            f"difference that the model can tell ({more:.0%})."
        )
    if ranked[1:]:
        second = ranked[1]
        margin = second.prediction.seconds / of.seconds - 1
        inside = second.band[0] <= of.seconds and first.band[0] <= second.prediction.seconds
        lines.append(
            f"Runner-up: {second.name} on {second.nodes} nodes, {margin:+.0%}"
            + (", inside the band: no difference." if inside else ", outside of the band.")
        )
    cell = {"name": "auto", "label": f"Auto: {first.name}", **first.cell}
    dumped = yaml.safe_dump([cell], sort_keys=False, default_flow_style=None, width=1000)
    lines += ["", *dumped.rstrip().splitlines(), ""]
    lines.append("Predicted, nothing is measured; errors by published points: docs/planner.md.")
    return lines


WHY = {
    "computation": "computing", "communication": "communication", "bubble": "the bubble",
    "host": "waiting for the host", "optimiser": "the update",
}  # fmt: skip
