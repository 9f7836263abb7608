"""Peaks of devices by their data sheets: `datasheet_peak(name, compute_dtype)`.

Dense matrix products, no sparsity. Processors have no entry: their peak depends on a clock that
moves with the load.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

DEVICES = Path(__file__).parent / "devices.json"


@dataclass(frozen=True)
class Peak:
    """A peak in FLOP/s; `source` is where it was read, one line for a reader."""

    device: str
    flops_per_second: float
    source: str


@cache
def datasheet_peak(name: str, compute_dtype: str) -> Peak | None:
    """The peak of the device that the driver calls `name`, None where no source is at hand."""
    content = json.loads(DEVICES.read_text(encoding="utf-8"))
    matching = (one for one in content["devices"] if re.search(one["name"], name))
    device: dict[str, Any] = next(matching, {"peaks": []})
    for peak in device["peaks"]:
        if peak["compute_dtype"] == compute_dtype:
            source = "{title}, {where}".format_map(content["documents"][peak["document"]])
            return Peak(device["id"], 1e12 * peak["teraflops"], source)
    return None
