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

from pipeline.errors import ClaimError
from pipeline.schemas import describe, first_error

DEVICES = "devices.json"


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
    return parse((Path(__file__).parent / DEVICES).read_text(encoding="utf-8"))


def parse(text: str) -> dict[str, dict[str, Peak]]:
    """Peaks by number format, by the pattern of a name; raises ClaimError on an unfit file."""
    content = json.loads(text)
    fault = first_error(content, "devices")
    if fault is not None:
        raise ClaimError(f"{DEVICES} {describe(fault)}")
    peaks_of: dict[str, dict[str, Peak]] = {}
    for device in content["devices"]:
        peaks = peaks_of[device["name"]] = {}
        for entry in device["peaks"]:
            if (name := entry["document"]) not in content["documents"]:
                at = f"{DEVICES}: {device['id']}"
                raise ClaimError(f"{at} names the document {name!r}; declare it in documents")
            source = "{title}, {where}".format_map(content["documents"][name])
            peak = Peak(device["id"], 1e12 * entry["teraflops"], source)
            peaks[entry["compute_dtype"]] = peak
    return peaks_of
