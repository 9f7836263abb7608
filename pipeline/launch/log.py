"""Faults that launchers name in the log of a run: signals, a shortage, a taken port.

torchrun's own exit code is 1 for all of it.
"""

from __future__ import annotations

import re
from pathlib import Path
from signal import SIGTERM
from typing import NamedTuple

_OF_A_RANK = re.compile(r"^\s*exitcode\s*: -(\d+) \(pid: \d+\)", re.MULTILINE)
"""A line of the report that torchrun makes of each rank that failed."""

_FIRST = re.compile(
    r"^Root Cause \(first observed failure\):\n\[\d+\]:\n(?:.*\n){0,3}?\s*exitcode\s*: -(\d+) "
    r"|SignalException: Process \d+ got signal: (\d+)",
    re.MULTILINE,
)
"""The same for the rank that failed before all others, or a line on torchrun's own end."""


def signals_of_ranks(log: Path, begin: int, end: int) -> list[int]:
    """Signals that ended ranks or launchers, by what torchrun wrote in bytes `begin` to `end`.

    torchrun ends the other ranks of a failed one by SIGTERM, so that counts only where it ended the
    first one, or torchrun.
    """
    text = log.read_bytes()[begin:end].decode(errors="replace") if log.exists() else ""
    others = {int(number) for number in _OF_A_RANK.findall(text)} - {SIGTERM}
    first = {int(one or other) for one, other in _FIRST.findall(text)}
    return sorted(others | first)


LOST = "lost in attempt"
"""Begins the line that ends an attempt in a log of several."""


class Sign(NamedTuple):
    """A line of a log that tells what a process was short of, the status that this is, the fix."""

    kind: str
    line: str
    fix: str


_SIGNS = (
    # Between the probe of a port and its use anything may take it; no rank is started by then.
    (r"EADDRINUSE", "lost", "the next start takes another port"),
    (r"Too many open files", "failed", "raise the limit (`ulimit -n`)"),
    (r"No space left on device|Disk quota exceeded", "error", "free space and start it again"),
    (r"Read-only file system|Input/output error|Stale file handle|File too large", "error",
     "mend the disk or its mount and start it again"),
    (r"Cannot allocate memory|[Oo]ut of memory|MemoryError|bad_alloc|failed to map segment", "oom",
     "give it more memory (`ulimit -v`, the job's request) or take a smaller study"),
    (r"Resource temporarily unavailable|can't start new thread|Thread creation failed", "failed",
     "allow more processes and threads (`ulimit -u`, pids of the control group)"),
    # As an error: of a family of addresses that is not there torch merely warns.
    (r"^(?!.*\[W\d).*(Network is unreachable|No route to host)", "failed",
     "see `ip address` and `ip route`"),
    (r"error while loading shared libraries.*|cannot open shared object.*", "failed",
     "see the log"),
)  # fmt: skip


def cause(log: Path) -> Sign | None:
    """The first line of the last attempt in a log that names what the system refused, if any did.

    For ends of which no rank told, since its process did not get so far.
    """
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    _, lost, attempt = text.rpartition(LOST)
    # What is left of the line on a lost attempt quotes that attempt's own reason.
    for line in attempt.splitlines()[1 if lost else 0 :]:
        for pattern, kind, fix in _SIGNS:
            if match := re.search(pattern, line):
                begin = max(0, match.end() - 200)
                return Sign(kind, " ".join(line[begin : match.end() + 30].split()), fix)
    return None
