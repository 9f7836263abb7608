"""Constants of the cost model: `Constants(leave_out)[device or profile, name]`, from a data file.

Each has a value, a unit, a source (data sheet, measured, assumed), the sets of points it was
derived from, and physical limits that it is held to. A set of points is predicted with none that
was derived from it: the constant then takes the value under `without`, or that of the default.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pipeline.documents import MAX_MADE_BYTES, read_text
from pipeline.documents import parse as parse_json
from pipeline.errors import PredictionError

FILE = Path(__file__).with_name("constants.json")
SOURCES = ("data sheet", "measured", "assumed")
Table = Mapping[str, Mapping[str, Any]]


def parse(text: str) -> dict[str, Any]:
    """The content of a constants file; raises PredictionError beyond physical limits."""
    content: dict[str, Any] = parse_json(text, FILE.name, PredictionError)
    for kind in ("devices", "profiles"):
        for owner, entry in content[kind].items():
            for name, constant in entry["constants"].items():
                _check(f"{kind}.{owner}.{name}", constant)
    # A variant of a device states what differs.
    for entry in content["devices"].values():
        if "like" in entry:
            other = content["devices"][entry["like"]]["constants"]
            entry["constants"] = other | entry["constants"]
    return content


def _check(where: str, constant: Mapping[str, Any]) -> None:
    low, high = constant["limits"]
    for value in (constant["value"], *constant.get("without", {}).values()):
        if not low <= value <= high:
            raise PredictionError(
                f"{FILE.name}: {where} is {value} {constant['unit']}, beyond what is physical; "
                f"expected {low} to {high}"
            )
    if constant["source"] not in SOURCES:
        raise PredictionError(
            f"{FILE.name}: {where} has the source {constant['source']!r}; use one of "
            + ", ".join(SOURCES)
        )
    if constant["source"] == "measured" and not constant["from"]:
        raise PredictionError(f"{FILE.name}: {where} is measured; name its points under `from`")


@cache
def content() -> dict[str, Any]:
    """The shipped file."""
    return parse(read_text(FILE, "", PredictionError, max_bytes=MAX_MADE_BYTES))


def profile_of(framework: str) -> str:
    """The profile of an implementation: the first whose pattern its name has, or `default`."""
    for name, entry in content()["profiles"].items():
        if name != "default" and re.search(entry["pattern"], framework, re.IGNORECASE):
            return str(name)
    return "default"


class Constants:
    """The shipped constants as they are without the points of the set `leave_out`.

    `used` collects the sets from which what was asked for had been derived.
    """

    def __init__(self, leave_out: str = "") -> None:
        self.leave_out = leave_out
        self.used: set[str] = set()

    def value(self, constant: Mapping[str, Any]) -> float | None:
        """Its value, None where it was derived from the set left out and has no other."""
        if self.leave_out not in constant["from"]:
            self.used |= set(constant["from"])
            return float(constant["value"])
        other = constant.get("without", {}).get(self.leave_out)
        return None if other is None else float(other)

    def knows(self, framework: str) -> bool:
        """True where an implementation has constants of its own, none from the set left out."""
        name = profile_of(framework)
        own = content()["profiles"][name]["constants"].values()
        return name != "default" and not any(self.leave_out in one["from"] for one in own)

    def device(self, name: str) -> dict[str, float]:
        """Constants of a device by its id in `constants.json`."""
        values = {}
        for key, constant in content()["devices"][name]["constants"].items():
            value = self.value(constant)
            assert value is not None, f"{name}.{key} has no value without {self.leave_out}"
            values[key] = value
        return values

    def profile(self, framework: str) -> dict[str, float]:
        """Constants of the implementation that a framework's name tells, the default for others.

        What a profile does not state is the default's.
        """
        profiles = content()["profiles"]
        values = {}
        for name in dict.fromkeys(("default", profile_of(framework))):
            for key, constant in profiles[name]["constants"].items():
                value = self.value(constant)
                if value is not None:
                    values[key] = value
        return values
