"""Programs of others that keep the cores of this machine busy, as far as /proc shows them."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress

import psutil

LEAST_CORES = 0.2
"""Cores of a program that is worth naming."""

MOST_NAMED = 3


def busy_programs(seconds: float, cores: Iterable[int]) -> str:
    """`another program uses core 1: python (process 4242)`, found in so many seconds.

    This process and its children are left out. `cores`, those that are known to be busy, are named
    where /proc shows no program (another guest's, for example) or one uses more than its own core.
    """
    _used()
    time.sleep(seconds)
    this = psutil.Process()
    ours = {this.pid, *(child.pid for child in this.children(recursive=True))}
    busy: list[tuple[float, int, str]] = []  # used cores, the last core, the name to show
    for process, used in _used().items():
        if used >= LEAST_CORES and process.pid not in ours:
            with suppress(psutil.Error):
                name = "".join(c if c.isprintable() else "?" for c in process.name())
                busy.append((used, process.cpu_num(), f"{name} (process {process.pid})"))
    busy.sort(reverse=True)
    where = sorted({core for _, core, _ in busy})
    if not busy or busy[0][0] > 1 + LEAST_CORES:
        where = sorted({*cores, *where})
    which = f"core {where[0]}" if len(where) == 1 else f"cores {', '.join(map(str, where))}"
    subject = f"{len(busy)} other programs use" if len(busy) > 1 else "another program uses"
    named = ", ".join(name for *_, name in busy[:MOST_NAMED]) or "none that /proc shows"
    return f"{subject} {which}: {named}{', ...' if len(busy) > MOST_NAMED else ''}"


def _used() -> dict[psutil.Process, float]:
    """Cores that each process has used since the last call, 0 for one that is new."""
    used = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            used[process] = process.cpu_percent() / 100
    return used
