"""Constants of the cost model, from a data file, and the devices that they make: `device_of`.

Each has a value, a unit, a source (data sheet, published, measured, assumed), the sets of points
that it was derived from, and physical limits that it is held to. A set of points is predicted with
none that was derived from it: the constant then takes the value under `without`, or that of the
default. Peaks of matrix products come from `pipeline/reference/devices.json`; memory, links and the
shares of them that kernels reach from `constants.json`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pipeline.cost.job import Job, Refused
from pipeline.documents import read_document
from pipeline.errors import PredictionError
from pipeline.reference.devices import datasheet_peak


@cache
def content() -> dict[str, Any]:
    """The shipped file; that its values lie within their limits is tested."""
    made: dict[str, Any] = read_document(
        Path(__file__).with_name("constants.json"), "", PredictionError
    )
    # A variant of a device states what differs.
    for entry in made["devices"].values():
        if "like" in entry:
            entry["constants"] = made["devices"][entry["like"]]["constants"] | entry["constants"]
    return made


def profile_name(framework: str) -> str:
    """The first profile whose pattern an implementation's name has; empty for the default."""
    named = ((n, one["pattern"]) for n, one in content()["profiles"].items() if n != "default")
    return next((n for n, pattern in named if re.search(pattern, framework, re.IGNORECASE)), "")


def profiles_of(framework: str) -> list[dict[str, Any]]:
    """Constants of an implementation: the default's, those of what it is `like`, its own."""
    profiles = content()["profiles"]
    chain, name = [profiles["default"]["constants"]], profile_name(framework)
    while name:
        chain.insert(1, profiles[name]["constants"])
        name = profiles[name].get("like", "")
    return chain


class Constants:
    """The shipped constants as they are without the points of the set `leave_out`.

    `used` collects the sets from which what was asked for had been derived.
    """

    def __init__(self, leave_out: str = "") -> None:
        self.leave_out = leave_out
        self.used: set[str] = set()

    def knows(self, framework: str) -> bool:
        """True where an implementation has constants of its own, none from the set left out."""
        own = [one for constants in profiles_of(framework)[1:] for one in constants.values()]
        return bool(own) and not any(self.leave_out in one["from"] for one in own)

    def device(self, name: str) -> dict[str, float]:
        """Constants of a device by its id in `constants.json`."""
        return self._values([content()["devices"][name]["constants"]])

    def profile(self, framework: str) -> dict[str, float]:
        """Constants of the implementation that a framework's name tells, the default for others."""
        return self._values(profiles_of(framework))

    def _values(self, layers: Iterable[Mapping[str, Any]]) -> dict[str, float]:
        """Values by name, of later layers before those of earlier ones.

        One that was derived from the set left out is the value without that, or the layer before's.
        """
        values = {}
        for key, constant in (pair for layer in layers for pair in layer.items()):
            if self.leave_out not in constant["from"]:
                self.used |= set(constant["from"])
                values[key] = float(constant["value"])
            elif self.leave_out in (without := constant.get("without", {})):
                values[key] = float(without[self.leave_out])
        return values


DEVICES = {
    "v100-16": 16, "v100-32": 32, "a100-40": 40, "a100-80": 80, "h100-80": 80, "h200-141": 140,
}  # fmt: skip
"""Memory in GiB, near what the driver reports in all; it and libraries keep some of it."""


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
        # Some drivers state no size, as that of an H200, of which there is one.
        whole = content()["devices"][_entry(name, DEVICES[name])]["driver_name"]
        if kind in driver_name.lower() and (size in driver_name or driver_name.startswith(whole)):
            return name
    return None


def _entry(hardware: str, gibibytes: float) -> str:
    """The id in `constants.json` of a device; raises Refused for one that is not known."""
    for name, entry in content()["devices"].items():
        if re.search(entry["pattern"], f"{hardware} {gibibytes:.0f}GB", re.IGNORECASE):
            return str(name)
    raise Refused(f"hardware {hardware[:40]!r} is not known")


def number_format(precision: str) -> str:
    """The name in `devices.json` of the format that a row's products have."""
    # Of a row that has several of these words the first one counts.
    words = {"bf16": "bfloat16", "fp16": "float16", "tf32": "tf32", "amp": "float16",
             "mixed": "float16", "fp32": "float32", "float32": "float32"}  # fmt: skip
    if word := next((word for word in words if word in precision), ""):
        return words[word]
    raise Refused(f"precision {precision[:40]!r} is not modelled; expected fp32, tf32, fp16, bf16")


def device_of(job: Job, constants: Constants) -> Device:
    """The device of a row's hardware; raises Refused for one that is not known."""
    name = _entry(job.hardware, job.device_gib)
    of = constants.device(name)
    dtype = number_format(job.precision)
    peak = datasheet_peak(content()["devices"][name]["driver_name"], dtype)
    if peak is None:
        raise Refused(f"{name} has no data sheet rate in {dtype}")
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
