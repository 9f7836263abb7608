"""Measurements at a place: one value per run, and the interval of their median.

    step_seconds, tokens_per_second, peak_memory_bytes, model_flops_utilisation: as of each run
    own_memory_bytes     peak_memory_bytes without what a rank had before it built its model
    mean_utilisation     mean over the ranks
    device_teraflops     model TFLOP/s of one device
    step_spread          95th percentile of the timed steps over their median, from 100 of them on
    memory_asymmetry     largest peak memory of a rank over the smallest
    time_asymmetry       longest own time of a rank in a step over the shortest: the step of a
                         profiled run without its exposed communication, in which a rank waits
    loss_roughness       root mean square of the loss's jumps from step to step after warm-up
    seconds_to_loss      training time from the first timed step until the loss reaches a target
    sent_bytes           bytes of a step, of the rank that sends most; `sent_bytes:AXIS` along one
                         axis of the mesh. Counted, so one profiled run has them exactly
    between_nodes_bytes  what of these goes to ranks of other nodes
    predicted_*          either by the strategy's own formula
    phase_bubble         bubble of a pipeline over its computing, replayed from the passes of
                         profiled runs (`pipeline.metrics.profile`)

Every run counts once. The interval of the median over the runs comes from interpolated order
statistics (`pipeline.metrics.statistics.values_interval`), that of a ratio of two from both.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from pipeline.claims.types import Claim, NotTestableError
from pipeline.claims.worlds import Evidence, Place, own
from pipeline.metrics.runs import STEPS_FOR_P95
from pipeline.metrics.statistics import (
    COUNTED,
    Floats,
    Interval,
    interval_of_ratio,
    values_interval,
)
from pipeline.study.profiling import BACKWARD, COMMUNICATION, FORWARD, IN_STEP

RATE = "tokens_per_second"


@dataclass(frozen=True)
class Metric:
    """Facts about a metric that a test needs, besides how it is measured."""

    words: str = ""
    unit: str = ""
    """A unit makes a claim on the plain value possible, without a ratio."""
    is_time: bool = False
    """A time, or what follows from one, which emulated nodes may bend."""
    any_speed: bool = False
    """True where it does not depend on how fast a number format is."""
    is_profiled: bool = False
    beside: tuple[str, str, str] | None = None
    """Metric that must say the same for a verdict, how it differs, and where both would agree."""


METRICS = {
    "step_seconds": Metric("step time", "s", is_time=True),
    RATE: Metric("throughput", "tokens/s", is_time=True),
    "model_flops_utilisation": Metric(unit="1", is_time=True),
    "device_teraflops": Metric(unit="TFLOP/s a device", is_time=True),
    "seconds_to_loss": Metric("time to a loss, at the step times of each,", is_time=True),
    "mean_utilisation": Metric(unit="1"),
    # On a CPU it holds what Python and its libraries take, the same in every cell.
    "peak_memory_bytes": Metric(
        "peak memory", "bytes", any_speed=True,
        beside=(
            "own_memory_bytes", "without Python and its libraries",
            "a GPU, or a model that is large beside Python's libraries",
        ),
    ),
    "memory_asymmetry": Metric(any_speed=True),
    "time_asymmetry": Metric(is_profiled=True),
    "loss_roughness": Metric(any_speed=True),
    "sent_bytes": Metric("bytes sent in a step", any_speed=True, is_profiled=True),
    "between_nodes_bytes": Metric(
        "bytes sent between nodes in a step", any_speed=True, is_profiled=True
    ),
    # On cores that ranks share the lengths of passes differ.
    "phase_bubble": Metric(
        "replayed bubble", any_speed=True, is_profiled=True,
        beside=(
            "phase_bubble_schedule", "with passes of equal length",
            "stages of equal length, by fewer parameters at the ends or cores of their own",
        ),
    ),
}  # fmt: skip


def facts(metric: object) -> Metric:
    """Those of a metric, which may have an axis, or none."""
    return METRICS.get(str(metric).partition(":")[0], Metric())


def kind_of_runs(claim: Claim) -> str:
    """Runs that a claim is tested by, as a word before `runs`; none for timed ones.

    Bytes, passes and phases are those of profiled runs; what explains a loss is a share of phases
    in a loss of timed runs.
    """
    if claim.kind == "explained":
        return "timed and profiled "
    return "profiled " if facts(claim.test.get("metric")).is_profiled else ""


@dataclass(frozen=True)
class Quantity:
    """Measurements at a place: a value per run, shape (runs,), and their median's interval.

    What was counted has no noise, and so no values.
    """

    values: Floats
    interval: Interval


def over_repeats(values: Iterable[float]) -> Quantity:
    """One value per run, of which there is at least one."""
    each = np.asarray(list(values), dtype=np.float64)
    return Quantity(each, values_interval(each.tolist()))


def _counted(value: float, runs: int = 1) -> Quantity:
    return Quantity(np.empty(0), Interval(value, value, value, runs, COUNTED))


def ratio(one: Interval, other: Interval) -> Interval:
    """One over the other, of independent runs; raises NotTestableError where a bound is zero."""
    if min(one.low, other.low) <= 0:
        raise NotTestableError("an interval includes zero, so a ratio has no bounds")
    if other.how == COUNTED:
        return one.times(1 / other.value)
    return interval_of_ratio(one, other)


def measure(evidence: Evidence, place: Place, metric: str) -> Quantity:
    """The metric at a place; raises NotTestableError when the study did not measure it."""
    match metric.partition(":")[0].removeprefix("predicted_"):
        case "sent_bytes" | "between_nodes_bytes":
            most = own(evidence.results.most_sent(metric), place)["value"]
            if most.empty:
                raise NotTestableError(
                    f"the study has no profiled run of {place.label} that counted bytes"
                )
            # Bytes that differ between runs, as those of some compression do, are a sample.
            alike = most.nunique() == 1
            return _counted(float(most.iloc[0]), len(most)) if alike else over_repeats(most)
        case "phase_bubble":
            # A run counts by the median of its steps.
            return over_repeats(_rows(evidence, place, "profile", metric)["value"])
        case "phase_bubble_schedule" | "phase_bubble_formula":
            return _counted(float(_rows(evidence, place, "cell", metric)["value"].iloc[0]))
        case "own_memory_bytes":
            base = _rows(evidence, place, "rank", "base_memory_bytes")
            peak = _rows(evidence, place, "run", "peak_memory_bytes").set_index("run_id")["value"]
            return over_repeats(peak - base.groupby("run_id")["value"].max())
        case "mean_utilisation":
            ranks = _rows(evidence, place, "rank", metric)
            return over_repeats(ranks.groupby("run_id", sort=True)["value"].mean())
        case "device_teraflops":
            per_token = evidence.rows(place, "run", "flops_per_token")["value"].max()
            rates = _rows(evidence, place, "run", RATE)["value"]
            return over_repeats(rates * per_token / place.ranks / 1e12)
        case "step_spread":
            timed = _timed(evidence, place, "step_seconds")
            runs = [run["value"].to_numpy() for _, run in timed.groupby("run_id", sort=True)]
            fewest = min((len(run) for run in runs), default=0)
            if fewest < STEPS_FOR_P95:
                raise NotTestableError(
                    f"a 95th percentile needs {STEPS_FOR_P95} timed steps, and a run of "
                    f"{place.label} has {fewest}"
                )
            return over_repeats(np.percentile(run, 95) / np.median(run) for run in runs)
        case "memory_asymmetry":
            return _over_ranks(evidence.rows(place, "rank", "peak_memory_bytes"), place)
        case "time_asymmetry":
            # Of the ranks' own time: each step ends in a collective, so whole steps are all alike.
            alone = _phases_of_ranks(evidence, place).drop(columns=COMMUNICATION).sum(axis=1)
            return _over_ranks(alone.rename("value").reset_index(), place)
        case "loss_roughness":
            # Runs of one seed and batch have the same losses and would count twice.
            steps = evidence.rows(place, "step", "loss").dropna(subset=["value"])
            steps = steps[steps["step"] >= evidence.study.optimiser.warmup_steps]
            losses = [
                seed[seed["repeat"] == seed["repeat"].min()]["value"].to_numpy()
                for _, seed in steps.groupby("seed", sort=True)
            ]
            if min(map(len, losses), default=0) < 4:
                raise NotTestableError(f"{place.label} has fewer than four losses after warm-up")
            return over_repeats(np.sqrt(np.mean(np.diff(loss) ** 2)) for loss in losses)
    return over_repeats(_rows(evidence, place, "run", metric)["value"])


def _rows(evidence: Evidence, place: Place, level: str, metric: str) -> pd.DataFrame:
    rows = evidence.rows(place, level, metric).dropna(subset=["value"])
    if rows.empty:
        raise NotTestableError(f"the metrics hold no {metric} of {place.label}")
    return rows


def _timed(evidence: Evidence, place: Place, metric: str) -> pd.DataFrame:
    steps = evidence.rows(place, "step", metric)
    return steps[steps["timed"].fillna(False).astype(bool)]


def _over_ranks(ranks: pd.DataFrame, place: Place) -> Quantity:
    """The largest of a run's ranks over the smallest; `ranks` has `run_id` and `value`."""
    runs = ranks.groupby("run_id", sort=True)["value"].agg(["min", "max", "count"])
    if runs.empty or runs["count"].min() < 2:
        raise NotTestableError(f"the runs of {place.label} recorded one process, so no ranks")
    if (runs["min"] <= 0).any():
        raise NotTestableError(f"a rank of {place.label} recorded nothing")
    return over_repeats(runs["max"] / runs["min"])


def _phases_of_ranks(evidence: Evidence, place: Place) -> pd.DataFrame:
    """Median seconds of each phase of a step (columns) of each rank (index: run_id, rank)."""
    names = [f"phase_seconds:{phase}" for phase in IN_STEP]
    rows = evidence.rows(place, "profile", *names)
    if rows.empty:
        raise NotTestableError(f"the study has no finished profiled run of {place.label}")
    wide = rows.pivot(index=["run_id", "rank"], columns="metric", values="value")
    wide.columns = [str(name).partition(":")[2] for name in wide.columns]
    if place.ranks > 1 and not (wide[COMMUNICATION] > 0).any():
        raise NotTestableError(f"the profiled runs of {place.label} tell no communication apart")
    return wide


def lost_shares(evidence: Evidence, many: Place, one: Place) -> tuple[Interval, float]:
    """Shares of a step on several nodes: exposed communication, and what passes take too long.

    Ideally passes take those of one node, for as much work, over the ratio of ranks. Where a
    library communicates on the core that computes, what overlaps is paid for there.
    """

    def slowest(place: Place) -> pd.DataFrame:
        """Phases of the slowest rank of each run, which ends the step."""
        # What others wait for it is no communication of the step.
        phases = _phases_of_ranks(evidence, place)
        return phases.loc[phases.sum(axis=1).groupby(level="run_id").idxmax()]

    here, alone, passes = slowest(many), slowest(one), [FORWARD, BACKWARD]
    steps = here.sum(axis=1)
    work = float(many.row["global_batch"] / one.row["global_batch"])
    ideal = alone[passes].sum(axis=1).median() * work * one.ranks / many.ranks
    slower = float(((here[passes].sum(axis=1) - ideal) / steps).median())
    return over_repeats(here[COMMUNICATION] / steps).interval, max(0.0, slower)


def seconds_to_loss(evidence: Evidence, places: Sequence[Place]) -> list[Quantity]:
    """Seconds of each place until the lowest loss that every run of all places reached.

    They count from the first timed step on, whose loss is the first that can be reached.
    """
    losses = [_timed(evidence, place, "loss") for place in places]
    lowest = [part.groupby("run_id")["value"].min() for part in losses]
    if any(part.empty or part.isna().any() for part in lowest):
        raise NotTestableError("a run has no finite loss")
    # Every run reaches it, so no time is missing.
    target = max(float(part.max()) for part in lowest)
    times = []
    for place, part in zip(places, losses, strict=True):
        seconds = _timed(evidence, place, "step_seconds")
        elapsed = seconds.groupby("run_id")["value"].cumsum()
        seconds = seconds[["run_id", "step"]].assign(elapsed=elapsed)
        reached = part[part["value"] <= target].merge(seconds, on=["run_id", "step"])
        times.append(over_repeats(reached.groupby("run_id", sort=True)["elapsed"].min()))
    return times
