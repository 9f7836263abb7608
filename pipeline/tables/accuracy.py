"""Accuracy of the emulated times on this machine; `python -m pipeline table accuracy`."""

from __future__ import annotations

from typing import Any

import pandas as pd

from pipeline.metrics.format import ratio_interval, with_interval
from pipeline.metrics.select import pick, records
from pipeline.tables.write import PLACE, places, with_measures

CAPTION = (
    "Accuracy of the emulated times on this machine: median step times of the same cells in real "
    "time, each node on cores of its own, and emulated, and the ratio of the second to the first, "
    "with 95 % intervals over the repeats. All ratios share the level of the yardstick, the speed "
    "of the emulated processor; by how much two of them may differ is what a ratio of emulated "
    "times may be off by. A dash: not measured here."
)
# Every cell is held against itself.
COMPARES = {"global_batch", "schedule", "updates_per_step", "precision", "data", "model"}
NEEDS = "real_time"
_MEASURES = {"real_time_step_seconds": "real", "step_seconds": "emulated", "accuracy": "ratio"}


def build(table: pd.DataFrame) -> pd.DataFrame:
    """One row for each cell that has runs in real time: seconds and their ratio, NaN for none."""
    cells = pick(table, "real_time", "status")[[*PLACE, "label"]]
    cells = cells.drop_duplicates(["cell", "nodes"]).reset_index(drop=True)
    return with_measures(cells, table, _MEASURES, bounded=True)


def show(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame as text, times in milliseconds."""

    def of(row: dict[str, Any], name: str, scale: float = 1000) -> tuple[float, float, float]:
        return scale * row[name], scale * row[f"{name}_low"], scale * row[f"{name}_high"]

    shown = [
        {
            "Real time [ms]": with_interval(*of(row, "real")),
            "Emulated [ms]": with_interval(*of(row, "emulated")),
            "Ratio": ratio_interval(*of(row, "ratio", 1)),
        }
        for row in records(frame)
    ]
    return pd.DataFrame(places(frame)).join(pd.DataFrame(shown))
