"""Median step time with its interval; `python -m pipeline table step_time`."""

from __future__ import annotations

import pandas as pd

from pipeline.metrics.format import NONE, significant, with_interval
from pipeline.metrics.select import pick, records
from pipeline.tables.write import PLACE, places, with_measures

CAPTION = (
    "Median over the repeats of the runs' median step times, with its 95 % interval from six "
    "repeats on. A dash stands where no run finished. Mean and largest "
    "step are those of a run, median over the repeats, and so is the 95th percentile (P95), which "
    "stands where every run has 100 timed steps; the CSV file has their intervals. Free running, "
    "on a GPU, is a step of a series that nothing waited for between, its batch read within; all "
    "other times begin and end with an idle device."
)
COMPARES = {"precision"}
_TAILS = {
    "mean_step_seconds": "Mean",
    "p95_step_seconds": "P95",
    "largest_step_seconds": "Largest",
    "free_step_seconds": "Free running",
}


def build(table: pd.DataFrame) -> pd.DataFrame:
    """One row for each cell and node count, times in seconds."""
    keys = ["cell_order", "label", "precision_ran", *PLACE, "world_size"]
    found = pick(table, "cell", "num_ok")[[*keys, "status", "value"]].rename(
        columns={"value": "repeats"}
    )
    times = pick(table, "cell", "step_seconds")[
        ["cell", "nodes", "value", "low", "high", "interval"]
    ]
    found = with_measures(found, table, {name: name for name in _TAILS}, bounded=True)
    names = {"low": "step_seconds_bca_low", "high": "step_seconds_bca_high"}
    bca = pick(table, "cell", "step_seconds_bca")[["cell", "nodes", "low", "high"]]
    found = found.merge(times, on=["cell", "nodes"], how="left")
    found = with_measures(found, table, {"timed_steps": "timed_steps"})
    found = found.merge(bca.rename(columns=names), on=["cell", "nodes"], how="left")
    names = {"value": "step_seconds", "low": "step_seconds_low", "high": "step_seconds_high"}
    return found.rename(columns=names).drop(columns="cell_order")


def show(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame as text, times in milliseconds."""
    shown = []
    for row in records(frame):
        value, low, high = (1000 * row[f"step_seconds{end}"] for end in ("", "_low", "_high"))
        ran = row["repeats"] > 0
        shown.append(
            {
                "Ranks": str(row["world_size"]),
                "Step time [ms]": with_interval(value, low, high) if ran else NONE,
                **{name: significant(1000 * row[metric]) for metric, name in _TAILS.items()},
                "Repeats": f"{row['repeats']:.0f}",
                "Timed steps": f"{row['timed_steps']:.0f}" if ran else NONE,
            }
        )
    return pd.DataFrame(places(frame)).join(pd.DataFrame(shown))
