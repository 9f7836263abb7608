"""Accuracy of the emulated times on this machine; `python -m pipeline table accuracy`."""

from __future__ import annotations

import pandas as pd

from pipeline.metrics.comparison import FIELDS
from pipeline.metrics.select import KEYS, pick
from pipeline.tables import columns as col

CAPTION = (
    "Accuracy of the emulated times on this machine: median step times of the same cells in real "
    "time, each node on cores of its own, and emulated, and the ratio of the second to the first, "
    "with 95 % intervals over the repeats. By how much two ratios may differ is what a ratio of "
    "emulated times may be off by. A dash: not measured here."
)
# Every cell is held against itself.
COMPARES = FIELDS
NEEDS = "real_time"
_MEASURES = {"real_time_step_seconds": "real", "step_seconds": "emulated", "accuracy": "ratio"}


def build(table: pd.DataFrame) -> pd.DataFrame:
    """One row for each cell that has runs in real time: seconds and their ratio, NaN for none."""
    cells = pick(table, "real_time", "status")[[*col.PLACE, "label"]]
    cells = cells.drop_duplicates(KEYS).reset_index(drop=True)
    return col.with_measures(cells, table, _MEASURES, bounded=_MEASURES)


def show(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame as text, times in milliseconds."""
    columns = [
        col.interval("Real time [ms]", "real", col.MILLISECONDS),
        col.interval("Emulated [ms]", "emulated", col.MILLISECONDS),
        col.ratio("Ratio", "ratio"),
    ]
    return col.shown(frame, columns)
