"""Rows of one record: those of level `step`, `rank` and `run`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pipeline.metrics import flops
from pipeline.metrics.facts import fact_rows
from pipeline.metrics.labels import run_context
from pipeline.metrics.statistics import NOT_TESTED, Floats, drift, median_interval
from pipeline.metrics.table import Rows, interval_row, row, rows
from pipeline.models import family
from pipeline.planner.memory import CPU_BASE, formula_24, loaded_later, predict
from pipeline.records import RunRecord, texts
from pipeline.resolved import ResolvedRun, resolve

# Hoefler & Belli (SC15, section 4.2): a timer should cost less than this share of what it times.
TIMER_SHARE = 0.05

STEPS_FOR_P95 = 100
"""Timed steps from which a run has a 95th percentile: five of them are above it."""

FREELY = "by steps that ran freely"

_SERIES = ("seconds", "loss", "grad_norm", "timed")


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

    def beginning(self, count: int) -> Run:
        """The first `count` steps; the run itself where it has no more."""
        parts: dict[str, Any] = {name: getattr(self, name)[:count] for name in _SERIES}
        return replace(self, **parts)

    @property
    def timed_seconds(self) -> Floats:
        """Step times after the untimed steps, in seconds.

        Of a strategy that sends in one step of a round alone, the mean step of each whole round: a
        median of steps would leave all communication out.
        """
        seconds: Floats = np.asarray(self.seconds[self.timed], dtype=np.float64)
        if (period := self.resolved.strategy.period) == 1:
            return seconds
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
    def tails(self) -> dict[str, float]:
        """The slowest step, P95 where there are steps for it, and a freely running step if any."""
        seconds = self.timed_seconds
        times = {"largest_step_seconds": float(seconds.max())}
        if len(seconds) >= STEPS_FOR_P95:
            times["p95_step_seconds"] = float(np.percentile(seconds, 95))
        if (free := self.free_seconds) is not None:
            times["free_step_seconds"] = free
        return times


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
        _floats(slowest[one.step] for one in first),
        _floats(one.loss for one in first),
        _floats(one.grad_norm for one in first),
        np.array([one.timed for one in first], dtype=np.bool_),
    )


def _floats(values: Iterable[float | None]) -> Floats:
    """None, which is a value that is not finite, becomes NaN."""
    return np.array([math.nan if value is None else value for value in values], dtype=np.float64)


def outcome_rows(record: RunRecord) -> list[dict[str, Any]]:
    """Status, times and size of a record, for a run whose step times stand elsewhere."""
    return [
        row("status", "1", float(record.status == "ok"), text=record.status),
        *({"metric": name, "text": record.run[name]} for name in ("started_at", "ended_at")),
        row("record_bytes", "bytes", float(sum(map(len, texts(record).values())))),
    ]


def run_rows(run: Run) -> list[Rows]:
    """All rows of one run; a run that is not ok has its status and its facts only."""
    context = {**run.context, "level": "run"}
    status = row("status", "1", float(run.ok), text=run.record.status)
    values = [status, *fact_rows(run.record)]
    if not run.ok:
        return [rows(context, values)]
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
        pairs = zip(flops.NAMES, shares, strict=True)
        values += [row(name, "1", share, text=text) for name, share in pairs]
    for text in (rank["unseen_text"] for rank in ranks if "unseen_text" in rank):
        last = text["steps"]
        values += [
            row("unigram_entropy", "nats/token", text["unigram_entropy"], n=last),
            row("unseen_loss", "nats/token", float(run.loss[-last:].mean()), n=last),
        ]
    clocks = [rank.get("timer_overhead_seconds") for rank in ranks]
    if None not in clocks:
        slowest = float(max(clocks))
        values += [
            row("timer_overhead_seconds", "s", slowest, text="an empty timing, slowest rank"),
            row("timer_overhead_share", "1", slowest / timed.value, text="of the median step"),
        ]
    if (change := drift(run.timed_seconds)) is None:
        values.append({"metric": "drift", "text": NOT_TESTED})
    else:
        values.append(row("drift", "1", change.share, n=change.n, text=change.verdict))
    return [rows(context, values), _step_rows(run), _rank_rows(run)]


def _step_rows(run: Run) -> Rows:
    series = {
        "step_seconds": ("s", run.seconds),
        "loss": ("nats/token", run.loss),
        "grad_norm": ("1", run.grad_norm),
    }
    count = len(run.seconds)
    columns = {
        "step": [*range(count)] * len(series),
        "timed": run.timed.tolist() * len(series),
        "metric": [metric for metric in series for _ in range(count)],
        "unit": [unit for unit, _ in series.values() for _ in range(count)],
        "value": np.concatenate([values for _, values in series.values()]).tolist(),
    }
    return Rows({"level": "step", **run.context}, columns)


def _rank_rows(run: Run) -> Rows:
    """Measurements of each rank, and beside its memory the predictions of our model and formula 24.

    The base below both is what the rank measured before it built its model, else the one measured
    once, with what is loaded later; torch's allocator on CUDA has none.
    """
    spec, record = run.record.spec, run.record.run
    cpu = spec.world.device == "cpu"
    forked = record["execution"]["launcher"] == "fork"
    later = loaded_later(forked, spec.model) if cpu else 0
    # What a forked rank measured has the library of its model in it.
    within = family(spec.model).loaded_bytes() if forked and cpu else 0
    measured, predicted = [], []
    for rank in record["ranks"]:
        number, base = rank["rank"], rank.get("base_memory_bytes")
        figures = [
            ("peak_memory_bytes", "bytes", rank["peak_memory_bytes"]),
            ("mean_utilisation", "cores" if cpu else "1", busy_cores(rank)),
            ("peak_flops_per_second", "FLOP/s", rank.get("peak_flops_per_second")),
        ]
        measured += [row(m, unit, v, rank=number) for m, unit, v in figures if v is not None]
        memory = {
            "base_memory_bytes": later + (CPU_BASE * cpu if base is None else base - within),
            "predicted_memory_bytes": predict(run.resolved, number).model_peak,
            "formula_memory_bytes": formula_24(run.resolved),
        }
        predicted += [row(m, "bytes", float(v), rank=number) for m, v in memory.items()]
    return rows({**run.context, "level": "rank"}, [*measured, *predicted])


def busy_cores(rank: Mapping[str, Any]) -> float | None:
    """Cores that a rank kept busy, by its CPU seconds as they count: at the yardstick's speed."""
    busy, speed = rank["mean_utilisation"], rank.get("machine_speed")
    return busy if busy is None or speed is None else float(busy * speed["median"])
