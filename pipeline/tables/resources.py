"""Peak memory and utilisation; `python -m pipeline table resources`."""

from __future__ import annotations

import pandas as pd

from pipeline.metrics.format import NONE, significant
from pipeline.metrics.select import pick
from pipeline.tables.write import PLACE, places, with_measures

CAPTION = (
    "Peak memory of the largest and of the smallest rank, and mean utilisation of a rank over the "
    "timed steps (busy cores of the process on a CPU, busy fraction of the device on a GPU); "
    "medians over the repeats."
)
COMPARES = {"precision"}
_MEBIBYTE = 2**20
_MEASURES = ("peak_memory_bytes", "least_peak_memory_bytes", "mean_utilisation")


def build(table: pd.DataFrame) -> pd.DataFrame:
    """One row for each cell and node count; memory in bytes."""
    found = pick(table, "cell", "num_ok")[[*PLACE, "label", "world_size", "device"]]
    return with_measures(found, table, {name: name for name in _MEASURES})


def show(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame as text, memory in MiB."""
    busy = "Busy cores a rank" if (frame["device"] == "cpu").all() else "Busy share of a device"

    def mebibytes(value: float) -> str:
        return NONE if pd.isna(value) else f"{value / _MEBIBYTE:,.0f}"

    return pd.DataFrame(
        {
            **places(frame),
            "Ranks": frame["world_size"].astype(str),
            "Largest rank [MiB]": [mebibytes(v) for v in frame["peak_memory_bytes"]],
            "Smallest rank [MiB]": [mebibytes(v) for v in frame["least_peak_memory_bytes"]],
            busy: [NONE if pd.isna(v) else significant(v, 2) for v in frame["mean_utilisation"]],
        }
    )
