"""Model and hardware FLOP utilisation against the peak that the ranks measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pipeline.metrics.statistics import Floats, Interval, values_interval
from pipeline.records import RunRecord

NAMES = ("model_flops_utilisation", "hardware_flops_utilisation")
_TEXT = "over the measured peak of matrix products"


def peak_per_rank(record: RunRecord) -> float | None:
    """Mean over the ranks of the peak that each can count on, in FLOP/s; None where one has none.

    Threads that share fewer cores than they are cannot all reach what one of them measured alone,
    so on a CPU the peaks count for as many cores as there are. Emulated nodes have all theirs.
    """
    run, world = record.run, record.spec.world
    peaks = [rank.get("peak_flops_per_second") for rank in run["ranks"]]
    if not peaks or None in peaks:
        return None
    execution, mean = run["execution"], float(np.mean(peaks))
    if world.device != "cpu":
        return mean * float(execution["layout"].get("devices_per_process", 1))
    if world.network == "emulated":
        return mean
    threads = len(peaks) * int(execution["threads_per_rank"])
    cores = int(run["hardware"]["num_cores"]) * world.num_machines
    return mean * min(1.0, cores / threads)


def utilisation(record: RunRecord, tokens_per_second: float) -> float | None:
    """FLOP/s of the model over the summed peaks (Chowdhery et al. 2022, appendix B).

    Hardware FLOPs add what is computed twice; nothing here recomputes, so both shares are this.
    """
    peak = peak_per_rank(record)
    if peak is None:
        return None
    total = peak * len(record.run["ranks"])
    return float(record.run["model"]["flops_per_token"] * tokens_per_second / total)


def run_values(
    record: RunRecord, tokens_per_second: float
) -> list[tuple[str, str, float, dict[str, Any]]]:
    """Both utilisations of a run, where its ranks measured a peak."""
    share = utilisation(record, tokens_per_second)
    return [] if share is None else [(name, "1", share, {"text": _TEXT}) for name in NAMES]


def cell_values(
    records: Sequence[RunRecord], rates: Floats, rate: Interval
) -> list[dict[str, Any]]:
    """Rows of a cell: FLOPs of a step and a second, and over the repeats peak and utilisation.

    `rates` are the tokens per second of each record, shape (repeats,), `rate` those of the cell.
    """
    first = records[0]
    per_token = float(first.run["model"]["flops_per_token"])
    values: list[dict[str, Any]] = [
        {"metric": "model_flops_per_step", "unit": "FLOP",
         "value": per_token * first.spec.global_batch_tokens},
        {"metric": "model_flops_per_second", "unit": "FLOP/s", "value": per_token * rate.value,
         "low": per_token * rate.low, "high": per_token * rate.high, "n": rate.n,
         "interval": rate.how},
    ]  # fmt: skip
    peaks = [peak_per_rank(record) for record in records]
    shares = [utilisation(r, float(rate)) for r, rate in zip(records, rates, strict=True)]
    return [
        *values,
        *_range("peak_flops_per_second", "FLOP/s", peaks),
        *(row for name in NAMES for row in _range(name, "1", shares)),
    ]


def _range(metric: str, unit: str, found: Sequence[float | None]) -> list[dict[str, Any]]:
    values = [value for value in found if value is not None]
    if len(values) < len(found):
        return []
    over = values_interval(values)
    return [{"metric": metric, "unit": unit, "value": over.value, "low": over.low,
             "high": over.high, "n": over.n, "interval": over.how}]  # fmt: skip
