"""The part of envs/requirements.lock that an image needs besides what its base brings.

    python -m envs.image.lock envs/requirements.lock

run by the Python of the new environment before anything is installed there: a torch that it already
finds is the base image's and stays. Prints one `name==version` per line, with its hashes.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

_PIN = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)")
_HASH = re.compile(r"^\s+(--hash=sha256:[0-9a-f]{64})")
_NEEDED_BY = re.compile(r"^\s+#\s+(?:via\s+)?([A-Za-z0-9._-]+)\s*$")


@dataclass
class Pin:
    """A package of the lock: its version, hashes of its files as options of pip, what needs it.

    One of requirements.in is needed by `-r`, whatever else needs it. torch has no hashes.
    """

    version: str
    hashes: list[str] = field(default_factory=list)
    needed_by: set[str] = field(default_factory=set)


def read_lock(text: str) -> dict[str, Pin]:
    """Pins by the name of their package, from the text that pip-compile writes."""
    pins, pin = dict[str, Pin](), Pin("")
    for line in text.splitlines():
        if named := _PIN.match(line):
            pin = pins[named[1].lower()] = Pin(named[2])
        elif option := _HASH.match(line):
            pin.hashes.append(option[1])
        elif "-r " in line:
            pin.needed_by.add("-r")
        elif (by := _NEEDED_BY.match(line)) and by[1] != "via":
            pin.needed_by.add(by[1].lower())
    return pins


def without(text: str, kept: Iterable[str]) -> list[str]:
    """Lines `name==version --hash=...` of the lock without `kept` and what only these need.

    So the base's torch keeps the SymPy that it asks for.
    """
    pins, dropped = read_lock(text), set(kept)
    while more := {n for n, p in pins.items() if p.needed_by and p.needed_by <= dropped} - dropped:
        dropped |= more
    return [
        " ".join([f"{name}=={pin.version}", *pin.hashes])
        for name, pin in pins.items()
        if name not in dropped
    ]


def main(arguments: list[str]) -> int:
    """Print the filtered lock to stdout, and where torch comes from to stderr."""
    (lock,) = arguments
    kept = ["torch"] if importlib.util.find_spec("torch") is not None else []
    print(f"torch comes from {'the base image' if kept else lock}", file=sys.stderr)
    print("\n".join(without(Path(lock).read_text(encoding="utf-8"), kept)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
