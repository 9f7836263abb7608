"""Layouts of a model on a cluster that is not here, by predicted step time, as cells of a study.

`python -m pipeline plan --model 1.3B --nodes 4 --gpus-per-node 8 --device a100-80 --link 200gbit`.
Data, tensor (inside a node) and pipeline axes, sequence parallelism, interleaving, cuts of stages,
ZeRO 1 to 3 (2 and 3 within nodes too), an expert axis of a mixture, micro-batch, recomputation and
fewer nodes; each strategy says which of them it can run (`Strategy.knobs`). Each layout stands with
the micro-batch and cuts that `_search` takes for it. Times are predictions (docs/planner.md).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product
from statistics import fmean
from typing import Any

import yaml

from pipeline import models, strategies
from pipeline.cost.constants import Constants, content
from pipeline.cost.job import Job, Refused
from pipeline.cost.points import USABLE, band_of, fits
from pipeline.cost.predict import Prediction, on_gpus, predict
from pipeline.cost.schedule import MOST_STAGES, even
from pipeline.cost.score import errors_of
from pipeline.errors import StudyError, UnsupportedError
from pipeline.parallel.mesh import Degrees, divisors
from pipeline.planner import here
from pipeline.planner.memory import GIBIBYTE, peak, predict_sent
from pipeline.planner.sizes import ADAMW
from pipeline.resolved import ResolvedRun, resolve
from pipeline.strategies.base import Strategy
from pipeline.study.spec import ModelSpec, RunSpec, WorkloadSpec, WorldSpec
from pipeline.text import align, plural, significant

LARGEST_MICRO = 64
CALIBRATED = 1.04
"""Ratio within which steps of a calibrated machine count as equal, chosen by hand.

It is less than their errors, which have much in common (bench/results/calibrated.json).
"""
MOST_NODES = 128
"""Nodes that `--nodes` takes, and up to which some are sought that would do."""
LEAST_BYTES = 12.0
"""Of a parameter, wherever it is cut: weight and two states of AdamW in fp32."""
SHOWN = 10
"""Rows of the table."""
FORMATS = {
    "bf16": "bf16 amp", "fp16": "fp16 amp", "amp_o1": "fp16 amp", "apex_o1": "fp16 amp",
    "amp_o2": "fp16", "apex_o2": "fp16",
}  # fmt: skip
"""A study's precisions as the cost model names them: autocast keeps weights in fp32."""
WHY = {
    "computation": "computing", "communication": "communication", "bubble": "the bubble",
    "host": "waiting for the host", "optimiser": "the update",
}  # fmt: skip
"""Parts of a step in words."""


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
    """A layout with what is predicted of it; `cell` has what a study states to run it.

    `calibrated`: predicted by what was measured here, not by the model of GPUs.
    """

    job: Job
    cell: Mapping[str, Any]
    prediction: Prediction
    calibrated: bool = False

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
        more = {
            "sequences cut": job.seq_parallel,
            "uneven stages": len({*job.counts}) > 1,
            f"{job.vpp} chunks": job.vpp > 1,
            f"experts over {job.ep}": job.ep > 1,
            f"ZeRO {job.zero}{' within nodes' * (job.shard < job.dp)}": job.zero > 0,
            f"by {self.cell['strategy']}": self.by_operator,
        }
        return ", ".join([mesh, *(name for name, has in more.items() if has)])

    @property
    def by_operator(self) -> bool:
        """True where single operators are cut."""
        return strategies.load(self.cell["strategy"], {}).by_operator

    @property
    def parts(self) -> int:
        """Number of things that have to work together: axes, ZeRO, recomputation, and so on."""
        job = self.job
        axes = (job.dp, job.tp, job.pp, job.vpp, job.ep, job.accum, len({*job.counts}))
        zero = (job.zero > 0, job.zero > 2, job.shard < job.dp)
        others = (*zero, job.recompute != "none", job.seq_parallel)
        return sum(size > 1 for size in axes) + sum(others) + self.by_operator

    @property
    def band(self) -> tuple[float, float]:
        """Seconds between which nine tenths of steps like this one lie."""
        on_gpus = band_of(self.job, Constants())
        low, high = content()["band"][here.BAND] if self.calibrated else on_gpus
        return low * self.prediction.seconds, high * self.prediction.seconds

    def is_told_from(self, other: Ranked) -> bool:
        """True where the prediction tells which of two is faster.

        Of the slower one not even the low end of the band reaches the faster; of steps that this
        machine was calibrated for, which share their errors, it is `CALIBRATED` slower.
        """
        faster, slower = sorted((self, other), key=lambda one: one.prediction.seconds)
        low = slower.prediction.seconds / CALIBRATED if self.calibrated else slower.band[0]
        return low > faster.prediction.seconds


@dataclass(frozen=True)
class Predictor:
    """Seconds and memory of a job: by the cost model of GPUs, or by what was measured here.

    `run_of` is the run of the job's cell, None where its strategy or the study cannot have it.
    """

    model: ModelSpec
    run_of: Callable[[Job, Mapping[str, Any]], ResolvedRun | None]
    calibration: here.Calibration | None = None

    def step(self, job: Job, cell: Mapping[str, Any]) -> Prediction | None:
        """The step; None where it cannot be predicted, Refused for a device that is not known."""
        if self.calibration is None and job.ep == 1:
            return predict(job, Constants())
        if (run := self.run_of(job, cell)) is None:
            return None
        if self.calibration is not None:
            try:
                return here.predict(run, self.calibration)
            except StudyError:
                return None
        # The model has no axis of experts: the strategy says what a rank sends along it. What
        # leaves a node is a mean over the ranks of the first one.
        ranks = range(min(job.gpus, job.gpus_per_node))
        of_ranks = zip(*(predict_sent(run, rank) for rank in ranks), strict=True)
        sent = [replace(one[0], leaving=fmean(each.leaving or 0 for each in one))
                for one in of_ranks]  # fmt: skip
        return predict(job, Constants(), sent)

    def steps(
        self, job: Job, cell: Mapping[str, Any], strategy: Strategy
    ) -> Iterator[tuple[Mapping[str, Any], Prediction]]:
        """The options of a cell with the step; of one that cuts operators the best ones first."""
        if not strategy.by_operator:
            if (step := self.step(job, cell)) is not None:
                yield cell["options"], step
            return
        # The step in which ranks of a tensor axis have all operators whole, and prices of cuts.
        if self.calibration is None:
            whole, prices = on_gpus(job, Constants(), models.num_parameters(self.model))
        elif (known := self.step(job, cell)) and (run := self.run_of(job, cell)):
            whole, prices = known, here.prices(run, job.tp, known, self.calibration)
        else:
            return
        cuts = strategy.cut_operators(self.model, job.micro, prices)
        while cuts is not None:
            yield cuts.knobs, cuts.of(whole)
            # Shares that differ do so by more than this.
            cuts = strategy.cut_operators(self.model, job.micro, prices, 0.9999 * cuts.share)

    def peak(self, job: Job, cell: Mapping[str, Any]) -> float | None:
        """Bytes of the rank that needs most; None where the cell cannot run."""
        with suppress(StudyError):
            if (run := self.run_of(job, cell)) is not None:
                # Of thousands of GPUs the first and the last alone: the ends of a pipeline.
                return peak(run, {0, job.gpus - 1} if self.calibration is None else ())
        return None


def run_on_gpus(
    model: ModelSpec, batch: int, job: Job, cell: Mapping[str, Any]
) -> ResolvedRun | None:
    """The run of a cell on GPUs that are not here; None where its strategy takes no such layout."""
    (nodes,) = cell["nodes"]
    spec = RunSpec(
        study="sizes", cell="auto", strategy=cell["strategy"], precision=cell["precision"],
        world=WorldSpec(nodes, job.gpus_per_node, "cuda", "nccl", "real"),
        model=model, optimiser=ADAMW, repeat=0, seed=0, options=cell["options"],
        workload=replace(WorkloadSpec(batch, 1, 2, 1, "strong", 0), **cell["workload"]),
    )  # fmt: skip
    with suppress(StudyError):
        run = resolve(spec)
        run.strategy.check_spec(spec)
        return run
    return None


def rank(
    model: ModelSpec, cluster: Cluster, batch: int, precision: str,
    predictor: Predictor | None = None, asked: Collection[str] = (),
) -> list[Ranked]:  # fmt: skip
    """The layouts that fit, the simplest of those that may be fastest first, then by seconds.

    `asked`: strategies that cut single operators and are to be ranked too. Raises StudyError where
    none fits, with what the least lacks and what would do.
    """
    # Without another one by the model of GPUs.
    predictor = predictor or Predictor(model, partial(run_on_gpus, model, batch))
    best, least = _search(model, cluster, batch, precision, predictor, asked)
    if best:
        by_time = sorted(best, key=lambda one: one.prediction.seconds)
        close = [one for one in by_time if not one.is_told_from(by_time[0])]
        first = min(close, key=lambda one: (one.parts, one.prediction.seconds))
        return [first, *(one for one in by_time if one is not first)]
    what = f"{cluster.nodes} x {cluster.gpus_per_node} devices of {cluster.device_gib:g} GiB"
    size = f"{models.num_parameters(model) / 1e6:,.0f} M parameters"
    if least is None:
        raise StudyError(
            f"no layout of {size} exists on {what}; give a batch that more ranks divide"
        )
    needs, room = least.prediction.gibibytes, USABLE * cluster.device_gib
    enough = math.ceil(100 * needs / USABLE) / 100
    others, nodes = "or a smaller model", cluster.nodes
    at_least = LEAST_BYTES * models.num_parameters(model) / GIBIBYTE / cluster.gpus_per_node
    while predictor.calibration is None and (nodes := 2 * nodes) <= MOST_NODES:
        if at_least > nodes * room:
            continue
        # Of unknown links the seconds mean nothing, but the memory does.
        larger = replace(cluster, nodes=nodes, link=cluster.link or 100.0)
        if fitting := _search(model, larger, batch, precision, predictor, ())[0]:
            one = min(fitting, key=lambda one: (one.job.gpus, one.prediction.seconds))
            others = f"and so would {one.nodes} nodes ({one.name})"
            break
    raise StudyError(
        f"no layout of {size} fits {what}: the least, {least.name}, needs {needs:,.3g} GiB, "
        f"{needs - room:,.3g} more than a process can have; devices of {enough:g} GiB would do, "
        + others
    )


def _search(
    model: ModelSpec, cluster: Cluster, batch: int, precision: str, predictor: Predictor,
    asked: Collection[str],
) -> tuple[list[Ranked], Ranked | None]:  # fmt: skip
    """The fastest that fits of each layout, and which of all needs least memory.

    On a calibrated machine fewest micro-batches win among steps within `CALIBRATED`: there the host
    time that each of them adds was predicted too low (docs/lab-notes.md).
    Raises StudyError for a device or a precision that the cost model has not.
    """
    found = defaultdict[tuple[object, ...], list[Ranked]](list)
    equal = 1.0 if predictor.calibration is None else CALIBRATED
    least: Ranked | None = None
    for job, cell in jobs(model, cluster, batch, precision, asked):
        strategy = strategies.load(cell["strategy"], cell["options"])
        # Micro-batch, recomputation and cuts of stages are knobs of one layout.
        key = (job.gpus, job.dp, job.tp, job.pp, job.vpp, job.zero, job.shard, job.seq_parallel,
               job.ep, strategy.by_operator)  # fmt: skip
        try:
            # Cuts of operators come one after the other, each slower and smaller than the last.
            for options, step in predictor.steps(job, cell, strategy):
                if any(equal * one.prediction.seconds <= step.seconds for one in found[key]):
                    break
                made = {**cell, "options": options}
                if (needed := predictor.peak(job, made)) is None:
                    break
                step = replace(step, memory=needed)
                one = Ranked(job, made, step, predictor.calibration is not None)
                if least is None or needed < least.prediction.memory:
                    least = one
                if fits(job, one.prediction):
                    found[key].append(one)
                    break
        except Refused as refused:
            raise StudyError(f"{refused}; give another --precision or --device") from None
    best = []
    for of_layout in filter(None, found.values()):
        most = equal * min(one.prediction.seconds for one in of_layout)
        close = [one for one in of_layout if one.prediction.seconds <= most]
        best.append(min(close, key=lambda one: (one.job.accum, one.prediction.seconds)))
    return best, least


@cache
def _takers(
    degrees: Degrees, precision: str, asked: tuple[str, ...]
) -> list[tuple[str, Mapping[str, Any], bool]]:
    """The strategies that run a layout in a precision: name, options, whether it cuts operators.

    The first that has it by a formula, and those asked for that search for it.
    """
    takers: list[tuple[str, Mapping[str, Any], bool]] = []
    for name in strategies.names():
        strategy = strategies.load(name, {})
        by_operator, has_formula = strategy.by_operator, any(not each for *_, each in takers)
        if (name not in asked) if by_operator else has_formula:
            continue
        if strategy.cuts_experts != (degrees.expert > 1):
            continue
        if (options := strategy.knobs(degrees)) is not None:
            with suppress(UnsupportedError):
                strategies.load(name, options).check_precision(precision)
                takers.append((name, options, by_operator))
    return takers


def jobs(
    model: ModelSpec, cluster: Cluster, batch: int, precision: str, asked: Collection[str] = ()
) -> Iterator[tuple[Job, dict[str, Any]]]:
    """Every layout that a strategy can run, on as many nodes or fewer, and its cell."""
    for nodes in divisors(cluster.nodes):
        for degrees in _degrees(model, nodes * cluster.gpus_per_node, cluster, batch):
            for name, options, by_operator in _takers(degrees, precision, tuple(asked)):
                # Micro-batches of a pipeline are its own knob, all others the study's.
                pieces = 1 if "microbatches" in options else degrees.microbatches
                # Not attention alone, which saves 4 bytes a head and token with fused kernels.
                for recompute in (False, True)[: 2 - by_operator]:
                    again = {"recompute": True} if recompute else {}
                    work: dict[str, Any] = {"accumulation_steps": pieces, **again}
                    cell = {"strategy": name, "precision": precision, "nodes": [nodes],
                            "options": dict(options), "workload": work}  # fmt: skip
                    yield job_of(model, cluster, nodes, degrees, batch, precision, recompute), cell


def _degrees(model: ModelSpec, gpus: int, cluster: Cluster, batch: int) -> Iterator[Degrees]:
    """Sizes of the axes and how they are used, with as many micro-batches as there can be.

    A tensor axis stays inside a node that has several devices. The depth of a pipeline need not
    divide the layers: its strategy gives the first stages one more, or each as many as make the
    FLOPs of all stages most even, where the last one has the output layer besides. ZeRO 2 and 3
    cut over all ranks, or over those of a node. An expert axis is within that of the data and
    beside no other.
    """
    micros = [2**n for n in range(LARGEST_MICRO.bit_length())]
    head = 6.0 * model.vocab_rows * model.width
    layer = (models.family(model).flops_per_token(model) - head) / model.num_layers
    deepest, mixture = min(model.num_layers, MOST_STAGES), models.experts(model)
    for tensor in divisors(cluster.gpus_per_node if cluster.gpus_per_node > 1 else gpus):
        for pipeline in divisors(gpus):
            if model.num_heads % tensor or gpus % (tensor * pipeline):
                continue
            data = gpus // (tensor * pipeline)
            if pipeline > deepest or batch % data:
                continue
            layers = even(model.num_layers, head / layer, pipeline)
            pieces_of = [batch // data // micro for micro in micros if batch // data % micro == 0]
            chunks_of, zeros = (1, 2)[:pipeline], range(4 if data > 1 else 1)
            uses = product(pieces_of, chunks_of, zeros, (False, True)[:tensor])
            for pieces, chunks, zero, sequence in uses:
                if chunks > 1 and (pieces % pipeline or chunks * pipeline > deepest):
                    continue
                degrees = Degrees(data, tensor, pipeline, chunks, zero, pieces, sequence)
                yield degrees
                if zero > 1 and tensor == pipeline == 1 < cluster.gpus_per_node < data:
                    yield replace(degrees, shard=cluster.gpus_per_node)
                if chunks == 1 and len(set(layers)) > 1:
                    yield replace(degrees, layers=layers)
                if mixture and tensor == pipeline == 1:
                    for expert in divisors(math.gcd(mixture.count, data))[1:]:
                        yield replace(degrees, expert=expert)


def job_of(
    model: ModelSpec, cluster: Cluster, nodes: int, degrees: Degrees, batch: int, precision: str,
    recompute: bool | str,
) -> Job:  # fmt: skip
    """A layout on so many nodes as the cost model has it; StudyError where it knows no shape."""
    shape, mixture = models.family(model).shape(model), models.experts(model)
    several = (mixture.count, mixture.chosen) if mixture else (1, 1)
    return Job(
        hardware=cluster.hardware, device_gib=cluster.device_gib,
        gpus=nodes * cluster.gpus_per_node, gpus_per_node=cluster.gpus_per_node,
        node_net_gbps=cluster.link, bert=False, biased=not shape.gated,
        layers=model.num_layers, hidden=model.width, heads=model.num_heads,
        vocab=model.vocab_rows, seq=model.context, **shape._asdict(),
        dp=degrees.data, tp=degrees.tensor, pp=degrees.pipeline, vpp=degrees.chunks,
        zero=degrees.zero, shard=degrees.shard or degrees.data, seq_parallel=degrees.sequence,
        micro=batch // degrees.data // degrees.microbatches, accum=float(degrees.microbatches),
        per_micro=False, precision=FORMATS.get(precision, precision),
        recompute=recompute if isinstance(recompute, str) else "full" if recompute else "none",
        flash=True, optimiser="adamw",
        framework="samestep", note="", counts=degrees.layers, schedule=degrees.schedule,
        inside=degrees.inside, experts=several[0], chosen=several[1], ep=degrees.expert,
    )  # fmt: skip


def table(ranked: list[Ranked]) -> list[str]:
    """The ranking as lines, and how far the answer may be trusted."""
    heads = ("layout", "nodes", "micro", "recompute", "step s", "band s", "GiB", "tokens/s",
             "device hours per 1e9 tokens")  # fmt: skip
    rows: list[tuple[str, ...]] = [heads]
    for one in ranked[:SHOWN]:
        job, seconds, (low, high) = one.job, one.prediction.seconds, one.band
        tokens = job.tokens * job.dp * job.accum
        rows.append((
            one.name, str(one.nodes), str(job.micro), job.recompute, significant(seconds),
            f"{significant(low)} to {significant(high)}", significant(one.prediction.gibibytes),
            f"{tokens / seconds:,.0f}", f"{job.gpus * 1e9 / tokens * seconds / 3600:,.1f}",
        ))  # fmt: skip
    return [*align(rows), "", *answer(ranked)]


def answer(ranked: list[Ranked]) -> list[str]:
    """The choice with its reasons, the runner-up with the margin, and the cell as YAML."""
    first = ranked[0]
    of = first.prediction
    shares = {part: getattr(of, part) / of.seconds for part in WHY}
    most = sorted(WHY, key=lambda part: -shares[part])[:2]
    link = f" (link {first.job.node_net_gbps:g} Gbit/s)" if first.job.node_net_gbps else ""
    batch = first.job.micro * first.job.dp * first.job.accum
    why = " and ".join(f"{WHY[part]} {shares[part]:.0%}" for part in most if shares[part] > 0.005)
    lines = [
        f"Choice of {plural(len(ranked), 'layout')} that fit: {first.name} on "
        f"{plural(first.nodes, 'node')}{link}, global batch {batch:.0f}, "
        f"{significant(of.seconds)} s a step, of which {why}; "
        f"{significant(of.gibibytes)} of {first.job.device_gib:.3g} GiB."
    ]
    if not ranked[1:]:
        lines.append("Runner-up: none, no other layout fits.")
    else:
        second = ranked[1]
        apart = {part: getattr(second.prediction, part) - getattr(of, part) for part in WHY}
        most_apart = WHY[max(apart, key=lambda part: abs(apart[part]))]
        band = "the band"
        if first.calibrated:
            band = f"the {CALIBRATED - 1:.0%} that count as equal on a calibrated machine"
        # Where the first is not the fastest, the second is, and the first is the simplest like it.
        slower = second.prediction.seconds / of.seconds - 1
        told = f"inside {band}: no difference"
        if first.is_told_from(second):
            told = f"outside of {band}"
        elif slower < 0:
            told += ", and the choice is the simplest"
        lines.append(
            f"{'Fastest' if slower < 0 else 'Runner-up'}: {second.name} on "
            f"{plural(second.nodes, 'node')}, {abs(slower):.0%} "
            f"{'faster' if slower < 0 else 'slower'}, mostly by {most_apart}, {told}."
        )
    cell = {"name": "auto", "label": f"Auto: {first.name}", **first.cell}
    dumped = yaml.safe_dump([cell], sort_keys=False, default_flow_style=None, width=1000)
    calibration = "errors of a calibration: docs/planner.md"
    errors = calibration if first.calibrated else errors_of(first.job.hardware)
    last = f"Predicted, nothing is measured; {errors}."
    return [*lines, "", *dumped.rstrip().splitlines(), "", last]
