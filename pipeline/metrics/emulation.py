"""Bias of times on emulated nodes, as tables and texts state it, and the yardstick's part."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from pipeline.errors import RecordError
from pipeline.metrics.format import ratio_interval
from pipeline.metrics.select import pick, plural, records
from pipeline.metrics.statistics import interpolated_bounds
from pipeline.schemas import read

HOW_TO_MEASURE = "cluster.real_time measures it, in a minute on a machine with two free cores"


def bias_of(table: pd.DataFrame) -> float | None:
    """Share by which a ratio of emulated times may be off here; None where it was not measured."""
    values = pick(table, "study", "emulation_bias")["value"]
    return None if values.empty else float(values.iloc[0])


def accuracy_of(table: pd.DataFrame) -> pd.DataFrame:
    """Rows `accuracy` of the cells that have an interval, the least ratio first."""
    rows = pick(table, "cell", "accuracy").dropna(subset=["low", "high"])
    return rows.sort_values("value", kind="stable")


def bias_sentence(table: pd.DataFrame) -> str:
    """The bias of emulated times in a sentence, the same in all documents; empty without any."""
    if not (pick(table, "run", "status")["network"] == "emulated").any():
        return ""
    bias, rows = bias_of(table), records(accuracy_of(table))
    if bias is None or not rows:
        return (
            "How far emulated times are off was not measured here, so nothing is decided by them "
            f"({HOW_TO_MEASURE})."
        )
    told = [
        f"{ratio_interval(one['value'], one['low'], one['high'])} in {one['label']} on "
        f"{plural(int(one['nodes']), 'node')}"
        for one in (rows[:1] if len(rows) == 1 else [rows[0], rows[-1]])
    ]
    return (
        f"A ratio of times on emulated nodes may be off by {100 * bias:.0f} % either way, and only "
        f"what is outside of that is decided: emulated over real time, measured on this machine, "
        f"was {' to '.join(told)}."
    )


def load_uncertainty(path: Path | None) -> float:
    """By how much the passes of a yardstick may be off against each other; 0 without a file.

    All runs of a study have the same yardstick, so that an error which all its passes share changes
    what the emulated processor is, and no comparison. What is left is how far each pass is off the
    geometric mean of all passes of its round: the largest half-width of their medians' 95 %
    intervals.
    """
    if path is None:
        return 0.0
    content = read(path, "yardstick", "python -m pipeline yardstick")
    rounds = [[one["forward_seconds"] for one in shape["rounds"]] for shape in content["passes"]]
    if len({len(ones) for ones in rounds}) != 1:
        raise RecordError(
            f"{path} at $.passes: all need as many rounds; remove the file, it is measured again"
        )
    logs = np.log(np.asarray(rounds))
    own = logs - logs.mean(axis=0)
    bounds = [(np.median(one), *interpolated_bounds(one)) for one in own]
    return float(np.expm1(max(max(high - mid, mid - low) for mid, low, high in bounds)))
