"""Peak memory and utilisation; `python -m pipeline table resources`."""

from __future__ import annotations

import pandas as pd

from pipeline.metrics.format import significant
from pipeline.tables import columns as col

CAPTION = (
    "Peak memory of the largest and of the smallest rank, and mean utilisation of a rank over the "
    "timed steps (busy cores of the process on a CPU, busy fraction of the device on a GPU); "
    "medians over the repeats."
)
COMPARES = {"precision"}
_MEASURES = ("peak_memory_bytes", "least_peak_memory_bytes", "mean_utilisation")


def build(table: pd.DataFrame) -> pd.DataFrame:
    """One row for each cell and node count; memory in bytes."""
    return col.with_measures(col.every_cell(table, "world_size", "device"), table, _MEASURES)


def show(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame as text, memory in MiB."""
    busy = "Busy cores a rank" if (frame["device"] == "cpu").all() else "Busy share of a device"
    columns = [
        col.text("Ranks", "world_size"),
        col.Column("Largest rank [MiB]", "peak_memory_bytes", col.MEBIBYTES, col.whole),
        col.Column("Smallest rank [MiB]", "least_peak_memory_bytes", col.MEBIBYTES, col.whole),
        col.Column(busy, "mean_utilisation", write=lambda cores: significant(cores, 2)),
    ]
    return col.shown(frame, columns)
