"""Constants of the cost model: `Constants(leave_out)[device or profile, name]`, from a data file.

Each has a value, a unit, a source (data sheet, published, measured, assumed), the sets of points
that it was derived from, and physical limits that it is held to. A set of points is predicted with
none that was derived from it: the constant then takes the value under `without`, or that of the
default.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pipeline.documents import read_document
from pipeline.errors import PredictionError

FILE = Path(__file__).with_name("constants.json")


@cache
def content() -> dict[str, Any]:
    """The shipped file; that its values lie within their limits is tested."""
    made: dict[str, Any] = read_document(FILE, "", PredictionError)
    # A variant of a device states what differs.
    for entry in made["devices"].values():
        if "like" in entry:
            entry["constants"] = made["devices"][entry["like"]]["constants"] | entry["constants"]
    return made


def profiles_of(framework: str) -> list[dict[str, Any]]:
    """Constants of an implementation: the default's, those of what it is `like`, its own.

    Its profile is the first one whose pattern its name has.
    """
    profiles = dict(content()["profiles"])
    default = profiles.pop("default")
    chain, names = [default["constants"]], list(profiles)
    name = next((n for n in names if re.search(profiles[n]["pattern"], framework, re.I)), "")
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

    def value(self, constant: Mapping[str, Any]) -> float | None:
        """Its value, None where it was derived from the set left out and has no other."""
        if self.leave_out not in constant["from"]:
            self.used |= set(constant["from"])
            return float(constant["value"])
        other = constant.get("without", {}).get(self.leave_out)
        return None if other is None else float(other)

    def knows(self, framework: str) -> bool:
        """True where an implementation has constants of its own, none from the set left out."""
        own = [one for constants in profiles_of(framework)[1:] for one in constants.values()]
        return bool(own) and not any(self.leave_out in one["from"] for one in own)

    def device(self, name: str) -> dict[str, float]:
        """Constants of a device by its id in `constants.json`."""
        values = {}
        for key, constant in content()["devices"][name]["constants"].items():
            value = self.value(constant)
            assert value is not None, f"{name}.{key} has no value without {self.leave_out}"
            values[key] = value
        return values

    def profile(self, framework: str) -> dict[str, float]:
        """Constants of the implementation that a framework's name tells, the default for others."""
        values = {}
        for constants in profiles_of(framework):
            for key, constant in constants.items():
                value = self.value(constant)
                if value is not None:
                    values[key] = value
        return values
