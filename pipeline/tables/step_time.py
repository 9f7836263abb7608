"""Median step time with its interval; `python -m pipeline table step_time`."""

from __future__ import annotations

import pandas as pd

from pipeline.metrics.select import beside, bounds_of, pick
from pipeline.tables import columns as col

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
    keys = ["label", "precision_ran", *col.PLACE, "world_size", "status", "value"]
    found = pick(table, "cell", "num_ok")[keys].rename(columns={"value": "repeats"})
    found = col.with_measures(found, table, [*_TAILS], bounded=_TAILS)
    times = {**bounds_of("step_seconds"), "interval": "interval"}
    found = beside(found, table, "step_seconds", times)
    found = col.with_measures(found, table, ["timed_steps"])
    bca = {"low": "step_seconds_bca_low", "high": "step_seconds_bca_high"}
    return beside(found, table, "step_seconds_bca", bca)


def show(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame as text, times in milliseconds."""
    columns = [
        col.text("Ranks", "world_size"),
        col.interval("Step time [ms]", "step_seconds", col.MILLISECONDS),
        *(col.Column(title, metric, col.MILLISECONDS) for metric, title in _TAILS.items()),
        col.Column("Repeats", "repeats", write="{:.0f}".format),
        col.Column("Timed steps", "timed_steps", write="{:.0f}".format),
    ]
    return col.shown(frame, columns)
