"""Programs of others that keep the cores of this machine busy, as far as /proc shows them."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")
LEAST_CORES = 0.2
"""Cores of a program that is worth naming."""

MOST_NAMED = 3
_TICKS = os.sysconf("SC_CLK_TCK")


class _Stat(NamedTuple):
    """What the kernel says of a process or thread: `seconds` of CPU time, the last `core`."""

    name: str
    state: str
    parent: int
    seconds: float
    core: int


def busy_programs(seconds: float, cores: Iterable[int]) -> str:
    """`another program uses core 1: python (process 4242)`, found in so many seconds.

    This process and what it started are left out. Where /proc shows no program, that of another
    guest or container for example, `cores` are named: those that are known to be busy.
    """
    before = {pid: stat.seconds for pid, stat in _processes().items()}
    time.sleep(seconds)
    after = _processes()
    used = {
        pid: (stat.seconds - before[pid]) / seconds
        for pid, stat in after.items()
        if pid in before and not _is_ours(pid, after)
    }
    busy = sorted((pid for pid in used if used[pid] >= LEAST_CORES), key=lambda pid: -used[pid])
    where = sorted({core for pid in busy for core in _cores(pid, after[pid])} or {*cores})
    which = f"core {where[0]}" if len(where) == 1 else f"cores {', '.join(map(str, where))}"
    subject = f"{len(busy)} other programs use" if len(busy) > 1 else "another program uses"
    named = ", ".join(f"{after[pid].name} (process {pid})" for pid in busy[:MOST_NAMED])
    more = ", ..." if len(busy) > MOST_NAMED else ""
    return f"{subject} {which}: {named or 'none that /proc shows'}{more}"


def _processes() -> dict[int, _Stat]:
    found = {int(path.parent.name): _stat(path) for path in PROC.glob("[0-9]*/stat")}
    return {pid: stat for pid, stat in found.items() if stat is not None}


def _stat(path: Path) -> _Stat | None:
    """A line of /proc/PID/stat (man 5 proc); None where the process has ended."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        head, _, tail = path.read_text(encoding="utf-8", errors="replace").rpartition(")")
        fields = tail.split()
        seconds = (int(fields[11]) + int(fields[12])) / _TICKS
        name = "".join(c if c.isprintable() else "?" for c in head.partition("(")[2])
        return _Stat(name, fields[0], int(fields[1]), seconds, int(fields[36]))
    return None


def _is_ours(pid: int, processes: dict[int, _Stat]) -> bool:
    while pid in processes and pid != os.getpid():
        pid = processes[pid].parent
    return pid == os.getpid()


def _cores(pid: int, process: _Stat) -> set[int]:
    """The cores of the threads that run at this moment, or where the process ran last."""
    threads = [_stat(path) for path in PROC.glob(f"{pid}/task/[0-9]*/stat")]
    return {stat.core for stat in threads if stat and stat.state == "R"} or {process.core}
