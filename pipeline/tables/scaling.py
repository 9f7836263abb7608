"""Throughput, speedup and efficiency; `python -m pipeline table scaling`."""

from __future__ import annotations

import pandas as pd

from pipeline.metrics.format import NONE, ratio_interval, with_interval
from pipeline.metrics.select import pick, records, speedup_name
from pipeline.tables.write import PLACE, places, with_measures

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
    keys = [*PLACE, "label", "precision_ran", "world_size", "scaling", "status"]
    found = pick(table, "cell", "num_ok")[keys]
    found = with_measures(found, table, {name: name for name in _MEASURES}, bounded=True)
    base = pick(table, "cell", "speedup")[["cell", "nodes", "base", "interval"]]
    absolute = pick(table, "cell", "base_tokens_per_second")[["cell", "nodes", "value"]]
    absolute = absolute.rename(columns={"value": "base_tokens_per_second"})
    against = pick(table, "comparison", "speed_verdict")[["cell", "nodes", "base", "text"]]
    against = against.rename(columns={"text": "verdict"})
    keys = ["cell", "nodes"]
    found = found.merge(base, on=keys, how="left").merge(absolute, on=keys, how="left")
    return found.merge(against, on=[*keys, "base"], how="left")


def show(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame as text, each measure as `value [low, high]`."""
    speedup = speedup_name(frame).partition(",")[0].capitalize()
    titles = ("Tokens/s", speedup, "Efficiency", "Over itself")
    shown = []
    for row in records(frame):
        line = {}
        for metric, title in zip(_MEASURES, titles, strict=True):
            value = (row[metric], row[f"{metric}_low"], row[f"{metric}_high"])
            line[title] = (with_interval if title == "Tokens/s" else ratio_interval)(*value)
        line["Base"] = NONE if pd.isna(row["base"]) else row["base"]
        line["Against it"] = NONE if pd.isna(row["verdict"]) else row["verdict"]
        shown.append(line)
    return pd.DataFrame(places(frame)).join(pd.DataFrame(shown))
