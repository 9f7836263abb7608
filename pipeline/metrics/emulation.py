"""How far times on emulated nodes may be off, as tables and texts are told, and the yardstick."""

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
    """Share by which emulated times may be off on this machine; None where it was not measured."""
    values = pick(table, "study", "emulation_bias")["value"]
    return None if values.empty else float(values.iloc[0])


def accuracy_of(table: pd.DataFrame) -> pd.DataFrame:
    """Rows `accuracy` of the cells that have an interval, the worst one first."""
    rows = pick(table, "cell", "accuracy").dropna(subset=["low", "high"])
    off = pd.concat([rows["high"], 1 / rows["low"]], axis=1).max(axis=1)
    return rows.loc[off.sort_values(ascending=False, kind="stable").index]


def bias_sentence(table: pd.DataFrame) -> str:
    """How far emulated times may be off, in all documents alike; empty where no run has any."""
    if not (pick(table, "run", "status")["network"] == "emulated").any():
        return ""
    bias, rows = bias_of(table), records(accuracy_of(table))
    if bias is None or not rows:
        return (
            "How far emulated times are off was not measured here, so nothing is decided by them "
            f"({HOW_TO_MEASURE})."
        )
    worst = rows[0]
    ratio = ratio_interval(worst["value"], worst["low"], worst["high"])
    return (
        f"Times on emulated nodes may be off by {100 * bias:.1f} % either way, and only what is "
        f"outside of that is decided (farthest from real time on this machine: {worst['label']} on "
        f"{plural(int(worst['nodes']), 'node')}, {ratio} times as long)."
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
