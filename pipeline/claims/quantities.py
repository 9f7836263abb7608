"""What was measured at a place: one number with its interval for each metric of a test.

    step_seconds, tokens_per_second, peak_memory_bytes, mean_utilisation: as in the table
    step_spread          95th percentile of the timed steps over their median
    memory_asymmetry     largest peak memory of a rank over the smallest
    time_asymmetry       largest median step time of a rank over the smallest
    loss_roughness       root mean square of the loss's jumps from step to step after warm-up
    seconds_to_loss      training time until the loss first reaches a target

The table gives bootstrap intervals where it has them; for the rest the bounds are the smallest and
largest repeat.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from pipeline.claims.types import Estimate, NotTestableError
from pipeline.claims.worlds import Evidence, Place
from pipeline.metrics.select import pick, records

_IN_TABLE = ("step_seconds", "tokens_per_second", "peak_memory_bytes", "mean_utilisation")
_RESAMPLES, _SEED = 2000, 20220613


def estimate(evidence: Evidence, place: Place, metric: str) -> Estimate:
    """The metric at a place; raises NotTestableError when the study did not measure it."""
    if metric in _IN_TABLE:
        return _from_table(evidence, place, metric)
    return _DERIVED[metric](evidence, place)


def ratio(one: Estimate, other: Estimate) -> Estimate:
    """One over the other, from the farthest corners of both intervals.

    It misses at most as often as both intervals together do, however their errors depend on one
    another, and less often than either where these are independent and roughly normal.
    """
    if other.low <= 0:
        raise NotTestableError("the interval of a divisor includes zero")
    return Estimate(
        one.value / other.value, one.low / other.high, one.high / other.low,
        _both(one.how, other.how),
    )  # fmt: skip


def largest(estimates: Sequence[Estimate]) -> Estimate:
    """The largest of several, with the bounds of the largest."""
    return Estimate(
        max(e.value for e in estimates), max(e.low for e in estimates),
        max(e.high for e in estimates), _both(*(e.how for e in estimates)),
    )  # fmt: skip


def smallest(estimates: Sequence[Estimate]) -> Estimate:
    """The smallest of several, with the bounds of the smallest."""
    return Estimate(
        min(e.value for e in estimates), min(e.low for e in estimates),
        min(e.high for e in estimates), _both(*(e.how for e in estimates)),
    )  # fmt: skip


def over_repeats(values: Sequence[float]) -> Estimate:
    """Median and range of one value a repeat."""
    how = f"smallest and largest of {len(values)} repeats"
    return Estimate(float(np.median(values)), float(min(values)), float(max(values)), how)


def own(table: pd.DataFrame, place: Place) -> pd.DataFrame:
    """Rows of `table` that are of this place."""
    return table[(table["cell"] == place.cell) & (table["nodes"] == place.nodes)]


def _both(*hows: str) -> str:
    return "corners of: " + "; ".join(dict.fromkeys(h.removeprefix("corners of: ") for h in hows))


def _from_table(evidence: Evidence, place: Place, metric: str) -> Estimate:
    rows = own(pick(evidence.table, "cell", metric), place).dropna(subset=["value", "low", "high"])
    if rows.empty:
        raise NotTestableError(f"the metrics hold no {metric} of {place.cell}")
    row = records(rows)[0]
    return Estimate(row["value"], row["low"], row["high"], str(row["interval"]))


def _step_spread(evidence: Evidence, place: Place) -> Estimate:
    steps = own(pick(evidence.table, "step", "step_seconds"), place)
    timed = steps[steps["timed"].fillna(False).astype(bool)]
    runs = [run["value"].to_numpy() for _, run in timed.groupby("run_id", sort=True)]
    return over_repeats([float(np.percentile(run, 95) / np.median(run)) for run in runs])


def _over_ranks(metric: str) -> Callable[[Evidence, Place], Estimate]:
    def asymmetry(evidence: Evidence, place: Place) -> Estimate:
        ranks = own(pick(evidence.table, "rank", metric), place)
        found = ranks.groupby("run_id", sort=True)["value"].agg(["min", "max", "count"])
        if found.empty or found["count"].min() < 2:
            raise NotTestableError(f"the runs of {place.cell} recorded one process, so no ranks")
        if (found["min"] <= 0).any():
            raise NotTestableError(f"a rank of {place.cell} recorded no {metric}")
        return over_repeats(list(found["max"] / found["min"]))

    return asymmetry


def _loss_roughness(evidence: Evidence, place: Place) -> Estimate:
    """From jumps between disjoint pairs of steps, which share no step, bootstrapped.

    One run a seed: runs of one seed and batch have the same losses and would count twice.
    """
    warmup = evidence.study.optimiser.warmup_steps
    steps = own(pick(evidence.table, "step", "loss"), place)
    steps = steps[steps["step"] >= warmup].dropna(subset=["value"])
    jumps = []
    for _, seed in steps.groupby("seed", sort=True):
        loss = seed[seed["repeat"] == seed["repeat"].min()]["value"].to_numpy()
        jumps.append(np.diff(loss)[::2])
    joined = np.concatenate(jumps) if jumps else np.empty(0)
    if len(joined) < 2:
        raise NotTestableError(f"{place.cell} has fewer than four losses after warm-up")
    drawn = np.random.default_rng(_SEED).integers(len(joined), size=(_RESAMPLES, len(joined)))
    samples = np.sqrt(np.mean(joined[drawn] ** 2, axis=1))
    value = float(np.sqrt(np.mean(joined**2)))
    low, high = (float(bound) for bound in np.percentile(samples, [2.5, 97.5]))
    how = f"95 % bootstrap of {len(joined)} jumps of the loss"
    return Estimate(value, min(low, value), max(high, value), how)


def seconds_to_loss(evidence: Evidence, places: Sequence[Place]) -> list[Estimate]:
    """Seconds of each place until the lowest loss that every run of all places reached."""
    losses = [own(pick(evidence.table, "step", "loss"), place) for place in places]
    lowest = [part.groupby("run_id")["value"].min() for part in losses]
    if any(part.isna().any() for part in lowest):
        raise NotTestableError("a run has no finite loss")
    target = max(float(part.max()) for part in lowest)
    found = []
    for place, part in zip(places, losses, strict=True):
        elapsed = own(pick(evidence.table, "step", "elapsed_seconds"), place)
        both = part.merge(elapsed, on=["run_id", "step"], suffixes=("", "_elapsed"))
        reached = both[both["value"] <= target]
        first = reached.groupby("run_id", sort=True)["value_elapsed"].min()
        found.append(over_repeats([float(seconds) for seconds in first]))
    return found


_DERIVED: dict[str, Callable[[Evidence, Place], Estimate]] = {
    "step_spread": _step_spread,
    "memory_asymmetry": _over_ranks("peak_memory_bytes"),
    "time_asymmetry": _over_ranks("rank_step_seconds"),
    "loss_roughness": _loss_roughness,
}
