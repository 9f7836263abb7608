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
from pathlib import Path

_PIN = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)")
_HASH = re.compile(r"^\s+(--hash=sha256:[0-9a-f]{64})")
_NEEDED_BY = re.compile(r"^\s+#\s+(?:via\s+)?([A-Za-z0-9._-]+)\s*$")


def read_lock(text: str) -> tuple[dict[str, str], dict[str, set[str]]]:
    """Package -> version and package -> what needs it, from the text that pip-compile writes.

    A package of requirements.in is needed by `-r`, whatever else needs it.
    """
    versions: dict[str, str] = {}
    needed_by: dict[str, set[str]] = {}
    name = ""
    for line in text.splitlines():
        if pin := _PIN.match(line):
            name = pin[1].lower()
            versions[name] = pin[2]
            needed_by[name] = set()
        elif name and "-r " in line:
            needed_by[name].add("-r")
        elif name and (by := _NEEDED_BY.match(line)) and by[1] != "via":
            needed_by[name].add(by[1].lower())
    return versions, needed_by


def hashes(text: str) -> dict[str, list[str]]:
    """Package -> options `--hash=sha256:...` of all its files; none for torch, see envs/lock.sh."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if pin := _PIN.match(line):
            found[pin[1].lower()] = one = []
        elif option := _HASH.match(line):
            one.append(option[1])
    return found


def without(text: str, kept: Iterable[str]) -> list[str]:
    """Lines `name==version --hash=...` of the lock without `kept` and what only these need.

    So the base's torch keeps the SymPy that it asks for.
    """
    versions, needed_by = read_lock(text)
    of_files = hashes(text)
    dropped = set(kept)
    while more := {n for n, by in needed_by.items() if by and by <= dropped} - dropped:
        dropped |= more
    return [
        " ".join([f"{name}=={version}", *of_files[name]])
        for name, version in versions.items()
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
