"""Rows of one record: those of level `step`, `rank` and `run`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.metrics import flops
from pipeline.metrics.facts import fact_rows
from pipeline.metrics.labels import run_context
from pipeline.metrics.statistics import NOT_TESTED, Floats, drift, median_interval
from pipeline.metrics.table import Rows, interval_row, row
from pipeline.models import family
from pipeline.planner.memory import CPU_BASE, formula_24, loaded_later, predict
from pipeline.records import RunRecord, texts
from pipeline.resolved import ResolvedRun, resolve

# Hoefler & Belli (SC15, section 4.2): a timer should cost less than this share of what it times.
TIMER_SHARE = 0.05

STEPS_FOR_P95 = 100
"""Timed steps from which a run has a 95th percentile: five of them are above it."""

FREELY = "by steps that ran freely"


@dataclass(frozen=True)
class Run:
    """A record with its step series, each of shape (steps,); not finite values are NaN.

    `seconds` is the slowest rank's time of each step: a step is over when its last rank is. With
    `freely` its throughput is by freely running steps.
    """

    record: RunRecord
    resolved: ResolvedRun
    context: Mapping[str, Any]
    seconds: Floats
    loss: Floats
    grad_norm: Floats
    timed: np.ndarray[Any, np.dtype[np.bool_]]
    freely: bool = False

    @property
    def ok(self) -> bool:
        """True where the run finished; only such runs enter a statistic."""
        return self.record.status == "ok"

    @property
    def timed_seconds(self) -> Floats:
        """Step times after the untimed steps, in seconds.

        Of a strategy that sends in one step of a round alone, the mean step of each whole round: a
        median of steps would leave all communication out.
        """
        seconds, period = self.seconds[self.timed], self.resolved.strategy.period
        rounds = max(1, len(seconds) // period)
        means: Floats = seconds[-rounds * period :].reshape(rounds, -1).mean(axis=1)
        return means

    @property
    def free_seconds(self) -> float | None:
        """Seconds of a freely running step of the slowest rank; None where a rank timed none."""
        free = [rank.get("free_running") for rank in self.record.run["ranks"]]
        return None if None in free else max(one["step_seconds"] for one in free)

    @property
    def throughput_seconds(self) -> Floats:
        """Step times by whose median throughput is: that of freely running steps, or all."""
        return np.array([self.free_seconds]) if self.freely else self.timed_seconds

    @property
    def quantities(self) -> dict[str, float]:
        """Quantities that a run has one of, so far as it has them: memory, times, busy cores."""
        ranks, seconds = self.record.run["ranks"], self.timed_seconds
        values = {
            "peak_memory_bytes": max(rank["peak_memory_bytes"] for rank in ranks),
            "mean_step_seconds": float(seconds.mean()),
            "largest_step_seconds": float(seconds.max()),
        }
        if len(seconds) >= STEPS_FOR_P95:
            values["p95_step_seconds"] = float(np.percentile(seconds, 95))
        if (free := self.free_seconds) is not None:
            values["free_step_seconds"] = free
        busy = [cores for rank in ranks if (cores := busy_cores(rank)) is not None]
        if len(busy) == len(ranks):
            values["mean_utilisation"] = float(np.mean(busy))
        return values


def load_run(record: RunRecord, label: Mapping[str, Any]) -> Run:
    """The step series of a record, taken from rank 0 and from the slowest rank."""
    # Loss and norm are those of the whole batch, and so the same on all ranks.
    first = [one for one in record.steps if one.rank == 0]
    slowest: dict[int, float] = {}
    for one in record.steps:
        slowest[one.step] = max(one.seconds, slowest.get(one.step, 0.0))
    return Run(
        record,
        resolve(record.spec),
        run_context(record, label),
        np.array([slowest[one.step] for one in first], dtype=np.float64),
        # None, which is a value that is not finite, becomes NaN.
        np.array([one.loss for one in first], dtype=np.float64),
        np.array([one.grad_norm for one in first], dtype=np.float64),
        np.array([one.timed for one in first], dtype=np.bool_),
    )


def outcome_rows(record: RunRecord) -> list[dict[str, Any]]:
    """Status, times and size of a record, for a run whose step times stand elsewhere."""
    return [
        row("status", "1", float(record.status == "ok"), text=record.status),
        *({"metric": name, "text": record.run[name]} for name in ("started_at", "ended_at")),
        row("record_bytes", "bytes", float(sum(map(len, texts(record).values())))),
    ]


def drift_row(metric: str, series: Floats) -> dict[str, Any]:
    """The columns of a drift over a series in its order."""
    if (change := drift(series)) is None:
        return {"metric": metric, "text": NOT_TESTED}
    share, verdict, third = change
    return row(metric, "1", share, n=third, text=verdict)


def run_rows(run: Run, *, formula: bool = False) -> list[Rows]:
    """All rows of one run, with those of formula 24 where the study tests its publication.

    A run that is not ok has its status and its facts only.
    """
    context = {**run.context, "level": "run"}
    status = row("status", "1", float(run.ok), text=run.record.status)
    values = [status, *fact_rows(run.record)]
    if not run.ok:
        return [Rows(context, values)]
    tokens, ranks = run.record.spec.global_batch_tokens, run.record.run["ranks"]
    timed = median_interval(run.timed_seconds)
    rate = median_interval(run.throughput_seconds).rate(tokens)
    peak = float(max(rank["peak_memory_bytes"] for rank in ranks))
    values += [
        interval_row("step_seconds", "s", timed),
        row("tokens_per_second", "tokens/s", rate.value, text=FREELY)
        if run.freely
        else interval_row("tokens_per_second", "tokens/s", rate),
        row("peak_memory_bytes", "bytes", peak, text="largest rank"),
    ]
    # Where the ranks measured a peak.
    if shares := flops.utilisations(run.record, rate.value):
        text = "over the measured peak of matrix products"
        values += [row(name, "1", shares[name], text=text) for name in flops.NAMES]
    for unseen in (rank["unseen_text"] for rank in ranks if "unseen_text" in rank):
        last = unseen["steps"]
        values += [
            row("unigram_entropy", "nats/token", unseen["unigram_entropy"], n=last),
            row("unseen_loss", "nats/token", float(run.loss[-last:].mean()), n=last),
        ]
    clocks = [rank.get("timer_overhead_seconds") for rank in ranks]
    if None not in clocks:
        slowest = float(max(clocks))
        values += [
            row("timer_overhead_seconds", "s", slowest, text="an empty timing, slowest rank"),
            row("timer_overhead_share", "1", slowest / timed.value, text="of the median step"),
        ]
    values.append(drift_row("drift", run.timed_seconds))
    series = {
        "step_seconds": ("s", run.seconds),
        "loss": ("nats/token", run.loss),
        "grad_norm": ("1", run.grad_norm),
    }
    steps = [
        row(metric, unit, value, step=step, timed=is_timed)
        for metric, (unit, own) in series.items()
        for step, (value, is_timed) in enumerate(zip(own.tolist(), run.timed.tolist(), strict=True))
    ]
    return [
        Rows(context, values),
        Rows({**context, "level": "step"}, steps),
        _rank_rows(run, formula=formula),
    ]


def _rank_rows(run: Run, *, formula: bool) -> Rows:
    """Measurements of each rank, and beside its memory what our model and `formula` 24 predict.

    The base below both is what the rank measured before it built its model, else the one measured
    once, with what is loaded later; torch's allocator on CUDA has none.
    """
    spec, record = run.record.spec, run.record.run
    cpu = spec.world.device == "cpu"
    by_launcher = record["execution"]["launcher"] == "fork"
    outside = record["provenance"]["image_digest"] is None
    on_loopback = outside and record["execution"]["network"] == "loopback"
    measured, predicted = [], []
    for rank in record["ranks"]:
        number, base = rank["rank"], rank.get("base_memory_bytes")
        # Earlier records do not say it; on a loopback those that measured a base were forked.
        forked = rank.get("forked", by_launcher or (on_loopback and base is not None))
        later = loaded_later(forked, spec.model) if cpu else 0
        # What a forked rank measured has the library of its model in it.
        within = family(spec.model).loaded_bytes() if forked and cpu else 0
        figures = [
            ("peak_memory_bytes", "bytes", rank["peak_memory_bytes"]),
            ("mean_utilisation", "cores" if cpu else "1", busy_cores(rank)),
            ("peak_flops_per_second", "FLOP/s", rank.get("peak_flops_per_second")),
        ]
        measured += [row(m, unit, v, rank=number) for m, unit, v in figures if v is not None]
        memory = {
            "base_memory_bytes": later + (CPU_BASE * cpu if base is None else base - within),
            "predicted_memory_bytes": predict(run.resolved, number).model_peak,
        }
        if formula:
            memory["formula_memory_bytes"] = formula_24(run.resolved)
        predicted += [row(m, "bytes", float(v), rank=number) for m, v in memory.items()]
    return Rows({**run.context, "level": "rank"}, [*measured, *predicted])


def busy_cores(rank: Mapping[str, Any]) -> float | None:
    """Cores that a rank kept busy, by its CPU seconds as they count: at the yardstick's speed."""
    busy, speed = rank["mean_utilisation"], rank.get("machine_speed")
    return busy if busy is None or speed is None else float(busy * speed["median"])
