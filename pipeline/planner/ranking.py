"""Layouts of a model on a cluster that is not here, by predicted step time.

`python -m pipeline plan --model 1.3B --nodes 4 --gpus-per-node 8 --device a100-80 --link 200gbit`.
Data, tensor (inside a node) and pipeline axes, ZeRO 1 to 3, micro-batch and recomputation; each
layout stands with the fastest micro-batch that fits. Times are predictions (docs/planner.md).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from pipeline.cost.constants import Constants, content
from pipeline.cost.job import Job, Refused
from pipeline.cost.points import fits, kind_of
from pipeline.cost.predict import Prediction, predict
from pipeline.errors import StudyError
from pipeline.planner.sizes import Size
from pipeline.planner.tables import align

LARGEST_MICRO = 64
SHOWN = 10
"""Rows of the table."""
_LINK = re.compile(r"(\d{1,6}(?:\.\d+)?) ?([gm])bit(?:/s)?", re.IGNORECASE | re.ASCII)


@dataclass(frozen=True)
class Cluster:
    """Nodes of GPUs; `link` is Gbit/s of a node in all."""

    hardware: str
    device_gib: float
    nodes: int
    gpus_per_node: int
    link: float


@dataclass(frozen=True)
class Ranked:
    """A layout with what is predicted of it."""

    job: Job
    prediction: Prediction

    @property
    def name(self) -> str:
        """`data 8 x tensor 4, ZeRO 1`."""
        job = self.job
        axes = (("data", job.dp), ("tensor", job.tp), ("pipeline", job.pp))
        mesh = " x ".join(f"{name} {size}" for name, size in axes if size > 1) or "one device"
        return f"{mesh}, ZeRO {job.zero}" if job.zero else mesh

    @property
    def parts(self) -> int:
        """Number of things that have to work together: axes, ZeRO, recomputation, micro-batches."""
        job = self.job
        axes = (job.dp, job.tp, job.pp)
        others = (job.zero > 0, job.zero > 2, job.recompute != "none", job.accum > 1)
        return sum(size > 1 for size in axes) + sum(others)

    @property
    def band(self) -> tuple[float, float]:
        """Seconds between which nine tenths of steps like this one lie."""
        low, high = content()["band"][kind_of(self.job, Constants())]
        return low * self.prediction.seconds, high * self.prediction.seconds


def gigabits(text: str) -> float:
    """Gbit/s of `200gbit`; raises StudyError on anything else."""
    found = _LINK.fullmatch(text.strip())
    rate = float(found[1]) * (1.0 if found[2].lower() == "g" else 1e-3) if found else 0.0
    if rate <= 0:
        raise StudyError(f"link {text[:60]!r} is no rate; write one of a node, as 200gbit")
    return rate


def rank(size: Size, cluster: Cluster, batch: int, precision: str) -> list[Ranked]:
    """The layouts that fit, the simplest of those that may be fastest first, then by seconds.

    May be fastest: the band reaches below what is predicted of the fastest. Raises StudyError where
    none fits, with what the least needs.
    """
    constants = Constants()
    best: dict[tuple[int, int, int, int], Ranked] = {}
    least: Ranked | None = None
    for job in _jobs(size, cluster, batch, precision):
        try:
            one = Ranked(job, predict(job, constants))
        except Refused as refused:
            raise StudyError(f"{refused}; give another --precision or --device") from None
        if least is None or one.prediction.gibibytes < least.prediction.gibibytes:
            least = one
        key = (job.dp, job.tp, job.pp, job.zero)
        faster = key not in best or one.prediction.seconds < best[key].prediction.seconds
        if fits(job, one.prediction) and faster:
            best[key] = one
    if not best:
        needs = (
            f"the least, {least.name}, needs {least.prediction.gibibytes:,.0f} GiB" if least else ""
        )
        raise StudyError(
            f"no layout of {size.id} fits {cluster.nodes} x {cluster.gpus_per_node} GPUs of "
            f"{cluster.device_gib:g} GiB: {needs}; give more nodes, or a smaller model"
        )
    by_time = sorted(best.values(), key=lambda one: one.prediction.seconds)
    fastest = by_time[0].prediction.seconds
    close = [one for one in by_time if one.band[0] <= fastest]
    first = min(close, key=lambda one: (one.parts, one.prediction.seconds))
    return [first, *(one for one in by_time if one is not first)]


def _jobs(size: Size, cluster: Cluster, batch: int, precision: str) -> Iterator[Job]:
    gpus, model = cluster.nodes * cluster.gpus_per_node, size.model
    if precision.startswith(("amp", "apex")):
        precision = "fp16 amp"
    powers = [2**n for n in range(11)]
    for tp in powers:
        for pp in powers:
            if tp > cluster.gpus_per_node or model.num_heads % tp or gpus % (tp * pp):
                continue
            dp = gpus // (tp * pp)
            if pp > model.num_layers or batch % dp:
                continue
            for zero in (0, 1, 2, 3) if dp > 1 and pp == 1 else (0, 1) if dp > 1 else (0,):
                for micro in (m for m in powers if m <= min(LARGEST_MICRO, batch // dp)):
                    for recompute in ("none", "full"):
                        yield Job(
                            hardware=cluster.hardware, device_gib=cluster.device_gib, gpus=gpus,
                            gpus_per_node=cluster.gpus_per_node, node_net_gbps=cluster.link,
                            bert=False, layers=model.num_layers, hidden=model.width,
                            heads=model.num_heads, kv_heads=model.num_heads, ffn=4 * model.width,
                            gated=False, vocab=model.vocab_rows, seq=model.context, tied=True,
                            dp=dp, tp=tp, pp=pp, vpp=1, zero=zero, shard=dp, seq_parallel=False,
                            micro=micro, accum=batch / dp / micro, per_micro=False,
                            precision=precision, recompute=recompute, flash=True,
                            optimiser="adamw", framework="", note="",
                        )  # fmt: skip


def table(ranked: list[Ranked]) -> list[str]:
    """The ranking as lines, and how far the answer may be trusted."""
    heads = ("layout", "micro", "recompute", "step s", "band s", "GiB", "tokens/s", "hours/1e9")
    rows = []
    for one in ranked[:SHOWN]:
        job, seconds = one.job, one.prediction.seconds
        tokens = job.tokens * job.dp * job.accum
        low, high = one.band
        rows.append(
            (
                one.name,
                str(job.micro),
                job.recompute,
                f"{seconds:.3g}",
                f"{low:.3g} to {high:.3g}",
                f"{one.prediction.gibibytes:.1f}",
                f"{tokens / seconds:,.0f}",
                f"{1e9 / tokens * seconds / 3600:.2f}",
            )
        )
    first, fastest = ranked[0], min(ranked, key=lambda one: one.prediction.seconds)
    lines = [*align([heads, *rows]), ""]
    if first is fastest:
        lines.append(f"{first.name} is predicted to be the fastest of {len(ranked)} that fit.")
    else:
        more = first.prediction.seconds / fastest.prediction.seconds - 1
        lines.append(
            f"{first.name} comes first as the simplest whose band reaches the fastest, "
            f"{fastest.name}: no difference that the model can tell ({more:.0%})."
        )
    lines.append("Predicted, nothing is measured; errors by published points: docs/planner.md.")
    return lines
