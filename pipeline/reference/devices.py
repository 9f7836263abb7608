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

DEVICES = Path(__file__).parent / "devices.json"


@dataclass(frozen=True)
class Peak:
    """A peak in FLOP/s; `source` is where it was read, one line for a reader."""

    device: str
    flops_per_second: float
    source: str


def datasheet_peak(name: str, compute_dtype: str) -> Peak | None:
    """The peak of the device that the driver calls `name`, None where no source is at hand."""
    for pattern, peaks in _devices().items():
        if re.search(pattern, name):
            return peaks.get(compute_dtype)
    return None


@cache
def _devices() -> dict[str, dict[str, Peak]]:
    """Peaks by number format, by the pattern of a name."""
    content = json.loads(DEVICES.read_text(encoding="utf-8"))
    peaks_of: dict[str, dict[str, Peak]] = {}
    for device in content["devices"]:
        peaks = peaks_of[device["name"]] = {}
        for entry in device["peaks"]:
            source = "{title}, {where}".format_map(content["documents"][entry["document"]])
            peak = Peak(device["id"], 1e12 * entry["teraflops"], source)
            peaks[entry["compute_dtype"]] = peak
    return peaks_of
