"""What each experiment needs: ranks, time, memory, disk; `python -m pipeline table experiments`."""

from __future__ import annotations

import pandas as pd

from pipeline.metrics.format import NONE, significant
from pipeline.metrics.select import pick, seconds_of_runs
from pipeline.tables.write import PLACE, places

CAPTION = (
    "What each experiment needs, by the records: time from the start of a run's processes to their "
    "end (median over the runs, and the sum of all), the peaks of all ranks together (median over "
    "the runs that finished) and the size of the records. Runs of every status are counted, and no "
    "profiled ones."
)
# It lists what was needed and compares nothing.
COMPARES = {"global_batch", "schedule", "updates_per_step", "precision", "data", "model"}
_MEBIBYTE, _KIBIBYTE = 2**20, 2**10


def build(table: pd.DataFrame) -> pd.DataFrame:
    """One row for each cell and node count; times in seconds, sizes in bytes."""
    keys = ["cell", "nodes"]
    found = pick(table, "cell", "num_ok")[[*PLACE, "label", "world_size", "device"]]
    names = {"count": "runs", "median": "run_seconds", "sum": "total_seconds"}
    times = seconds_of_runs(table).groupby(keys)["seconds"].agg(["count", "median", "sum"])
    peaks = pick(table, "rank", "peak_memory_bytes").groupby([*keys, "run_id"])["value"].sum()
    sizes = pick(table, "run", "record_bytes").groupby(keys)["value"].sum()
    for column in (
        times.rename(columns=names).reset_index(),
        peaks.groupby(keys).median().rename("peak_memory_bytes").reset_index(),
        sizes.rename("record_bytes").reset_index(),
    ):
        found = found.merge(column, on=keys, how="left")
    return found


def show(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame as text: seconds a run, minutes in all, MiB and KiB."""
    device = {"cpu": "CPU", "cuda": "GPU"}
    memory = frame["peak_memory_bytes"] / _MEBIBYTE
    return pd.DataFrame(
        {
            **places(frame),
            "Ranks": frame["world_size"].astype(str),
            "Device": frame["device"].map(device),
            "Runs": frame["runs"].astype(str),
            "A run [s]": [f"{value:,.0f}" for value in frame["run_seconds"]],
            "All runs [min]": [significant(value / 60, 2) for value in frame["total_seconds"]],
            "Memory [MiB]": [NONE if pd.isna(value) else f"{value:,.0f}" for value in memory],
            "Records [KiB]": [f"{value / _KIBIBYTE:,.0f}" for value in frame["record_bytes"]],
        }
    )
