"""Devices and links of the cost model: `device_of(job, constants)`.

Peaks of matrix products come from `pipeline/reference/devices.json`; memory, links and the shares
of them that kernels reach from `constants.json`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.cost.constants import Constants, content
from pipeline.cost.job import Job, Refused
from pipeline.reference.devices import datasheet_peak

DEVICES = {
    "v100-16": 16, "v100-32": 32, "a100-40": 40, "a100-80": 80, "h100-80": 80, "h200-141": 131,
}  # fmt: skip
"""Memory in GiB as the makers' data sheets name it; the driver keeps some of it."""


@dataclass(frozen=True)
class Device:
    """One GPU in SI units; `rate` is what large matrix products reach, in FLOP/s."""

    peak: float
    rate: float
    memory_rate: float
    link_rate: float
    kernel_seconds: float
    constants: Mapping[str, float]
    element: int


def name_of(driver_name: str) -> str | None:
    """The name in `DEVICES` of a GPU as its driver calls it, such as `NVIDIA A100-SXM4-80GB`."""
    for name in DEVICES:
        kind, size = name.split("-")
        # Of an H200 there is one, and its driver states no size.
        if kind in driver_name.lower() and (size in driver_name or kind == "h200"):
            return name
    return None


def number_format(precision: str) -> str:
    """The name in `devices.json` of the format that a row's products have."""
    for word, name in (("bf16", "bfloat16"), ("fp16", "float16"), ("tf32", "tf32")):
        if word in precision:
            return name
    if "amp" in precision or "mixed" in precision:
        return "float16"
    if "fp32" in precision or "float32" in precision:
        return "float32"
    raise Refused(f"precision {precision[:40]!r} is not modelled; expected fp32, tf32, fp16, bf16")


def device_of(job: Job, constants: Constants) -> Device:
    """The device of a row's hardware; raises Refused for one that is not known."""
    known = content()["devices"]
    hardware = f"{job.hardware} {job.device_gib:.0f}GB"
    names = [n for n in known if re.search(known[n]["pattern"], hardware, re.IGNORECASE)]
    if not names:
        raise Refused(f"hardware {job.hardware[:40]!r} is not known")
    of = constants.device(names[0])
    dtype = number_format(job.precision)
    peak = datasheet_peak(known[names[0]]["driver_name"], dtype)
    if peak is None:
        raise Refused(f"{names[0]} has no data sheet rate in {dtype}")
    # All wait for the slowest of the devices, whose speeds differ a little: the expected largest
    # of n normal deviates is near sqrt(2 ln n) (0.6 below it for few).
    slowest = 1.0 + of["spread"] * max(0.0, math.sqrt(2 * math.log(job.gpus)) - 0.6)
    share = of["share_fp32"] if dtype == "float32" else of["share"]
    flops = peak.flops_per_second * of["clock"]
    return Device(
        peak=flops,
        rate=flops * share / slowest,
        memory_rate=1e9 * of["memory_gb_s"] * of["memory_share"] / slowest,
        link_rate=1e9 * of["link_gb_s"] * of["link_share"],
        kernel_seconds=1e-6 * of["kernel_us"],
        constants=of,
        element=4 if dtype in ("float32", "tf32") else 2,
    )
