"""Throughput, speedup and efficiency; `python -m pipeline table scaling`."""

from __future__ import annotations

import pandas as pd

from pipeline.metrics.select import KEYS, beside, speedup_name
from pipeline.tables import columns as col

CAPTION = (
    "Throughput, its speedup over the base, parallel efficiency (speedup over the ratio of ranks), "
    "and throughput over that of the same cell on its fewest nodes, with their intervals; those of "
    "ratios cover no less than the worse of their two parts. Under weak scaling the speedup is "
    "called scaled. The last column says whether the test finds the cell faster or slower than the "
    "base. A dash: no run finished, or the base did not."
)
COMPARES = {"precision"}
_MEASURES = ("tokens_per_second", "speedup", "efficiency", "own_speedup")


def build(table: pd.DataFrame) -> pd.DataFrame:
    """One row for each cell and node count; each measure with low and high."""
    found = col.every_cell(table, "precision_ran", "world_size", "scaling", "status")
    found = col.with_measures(found, table, _MEASURES, bounded=_MEASURES)
    found = beside(found, table, "speedup", {"base": "base", "interval": "interval"})
    found = col.with_measures(found, table, ["base_tokens_per_second"])
    verdict, keys = {"text": "verdict"}, [*KEYS, "base"]
    return beside(found, table, "speed_verdict", verdict, "comparison", keys)


def show(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame as text, each measure as `value [low, high]`."""
    columns = [
        col.interval("Tokens/s", "tokens_per_second"),
        col.ratio(speedup_name(frame).partition(",")[0].capitalize(), "speedup"),
        col.ratio("Efficiency", "efficiency"),
        col.ratio("Over itself", "own_speedup"),
        col.text("Base", "base"),
        col.text("Against it", "verdict"),
    ]
    return col.shown(frame, columns)
