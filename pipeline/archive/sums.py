"""SHA256SUMS as coreutils' `sha256sum --check` reads it."""

from __future__ import annotations

import re

from pipeline.errors import ArchiveError

_LINE = re.compile(r"([0-9a-f]{64})  (\S+)", re.ASCII)


def parse_sums(text: str, where: str) -> dict[str, str]:
    """Name -> SHA-256 in hex; raises ArchiveError naming the line that is none."""
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        match = _LINE.fullmatch(line)
        if match is None or match[2] in found:
            raise ArchiveError(
                f"{where}:{number}: {line[:80]!r} is not a checksum and a name of its own; "
                "fetch the archive again"
            )
        found[match[2]] = match[1]
    return found
