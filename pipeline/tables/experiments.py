"""What each experiment needs: ranks, time, memory, disk; `python -m pipeline table experiments`."""

from __future__ import annotations

import pandas as pd

from pipeline.metrics.comparison import FIELDS
from pipeline.metrics.format import significant
from pipeline.metrics.select import KEYS, pick, seconds_of_runs
from pipeline.tables import columns as col

CAPTION = (
    "What each experiment needs, by the records: time from the start of a run's processes to their "
    "end (median over the runs, and the sum of all), the peaks of all ranks together (median over "
    "the runs that finished) and the size of the records. Runs of every status are counted, and no "
    "profiled ones."
)
# It lists what was needed and compares nothing.
COMPARES = FIELDS
_DEVICES = {"cpu": "CPU", "cuda": "GPU"}


def build(table: pd.DataFrame) -> pd.DataFrame:
    """One row for each cell and node count; times in seconds, sizes in bytes."""
    names = {"count": "runs", "median": "run_seconds", "sum": "total_seconds"}
    times = seconds_of_runs(table).groupby(KEYS)["seconds"].agg([*names]).rename(columns=names)
    peaks = pick(table, "rank", "peak_memory_bytes").groupby([*KEYS, "run_id"])["value"].sum()
    sizes = pick(table, "run", "record_bytes").groupby(KEYS)["value"].sum()
    found = col.every_cell(table, "world_size", "device").join(times, on=KEYS)
    found = found.join(peaks.groupby(KEYS).median().rename("peak_memory_bytes"), on=KEYS)
    return found.join(sizes.rename("record_bytes"), on=KEYS)


def show(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame as text: seconds a run, minutes in all, MiB and KiB."""
    columns = [
        col.text("Ranks", "world_size"),
        col.Column("Device", "device", write=_DEVICES.__getitem__),
        col.text("Runs", "runs"),
        col.Column("A run [s]", "run_seconds", write=col.whole),
        col.Column("All runs [min]", "total_seconds", 1 / 60, lambda value: significant(value, 2)),
        col.Column("Memory [MiB]", "peak_memory_bytes", col.MEBIBYTES, col.whole),
        col.Column("Records [KiB]", "record_bytes", 1 / 2**10, col.whole),
    ]
    return col.shown(frame, columns)
