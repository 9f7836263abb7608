"""Published step times of the very setting that a cell has, for figures whose axis is the same.

An absolute time of other hardware may stand beside a measured one only where model, batch,
precision and number of devices agree and both are of GPUs; a study on a CPU gets none. Nor does a
study whose arms differ in their work: the table does not say what each step did besides.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from pipeline.metrics.comparison import declared_by_study
from pipeline.metrics.select import pick, records
from pipeline.reference import Number, ids, load


def published_step_seconds(table: pd.DataFrame) -> dict[tuple[str, int], Number]:
    """(cell, nodes) -> the published step time of its setting, in seconds."""
    if declared_by_study(table):
        return {}
    known = [
        number
        for study in ids()
        for number in load(study).numbers.values()
        if number.unit == "s" and "model" in number.setting
    ]
    return {
        (row["cell"], int(row["nodes"])): number
        for row in records(pick(table, "cell", "step_seconds"))
        for number in known
        if _same_setting(row, number.setting)
    }


def _same_setting(row: Mapping[str, Any], setting: Mapping[str, Any]) -> bool:
    names = ("strategy", "precision", "nodes", "global_batch", "model")
    return bool(
        row["device"] == "cuda"
        and row["world_size"] == setting.get("devices")
        and not setting.get("empty_cache", False)
        and all(row[name] == setting.get(name) for name in names)
    )


def legend_label(numbers: Mapping[tuple[str, int], Number]) -> str:
    """What the legend says of these points: published, and on what."""
    devices = dict.fromkeys(str(number.setting["device"]) for number in numbers.values())
    return f"published, on {' and '.join(devices)}"
