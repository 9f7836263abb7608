"""Figures that the host of a virtual machine has disturbed are made again.

The host may give the cores to others while something is measured. What was measured while it took
more than MOST_STOLEN of them is made again, whatever it was, up to ATTEMPTS times.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

import psutil

T = TypeVar("T")
MOST_STOLEN, ATTEMPTS, PAUSE_SECONDS = 0.05, 4, 3.0
"""Share of all cores' time that the host may take; attempts at a figure, and the pause between."""


class Machine:
    """Time that the host takes from this machine during a measurement."""

    def __init__(self) -> None:
        self.disturbed, self.dropped = 0, 0

    def undisturbed(self, measure: Callable[[], T]) -> T:
        """The result of `measure` while the host takes little, or the last one of some attempts."""
        for attempt in range(ATTEMPTS):
            start, before = time.monotonic(), psutil.cpu_times().steal
            result = measure()
            passed = (time.monotonic() - start) * (os.cpu_count() or 1)
            if (psutil.cpu_times().steal - before) / passed <= MOST_STOLEN:
                return result
            if attempt < ATTEMPTS - 1:
                self.dropped += 1
                time.sleep(PAUSE_SECONDS)
        self.disturbed += 1
        return result

    def counts(self) -> dict[str, int]:
        """Numbers of figures dropped since the last call because they were disturbed."""
        counts = {"disturbed": self.disturbed, "dropped": self.dropped}
        self.disturbed, self.dropped = 0, 0
        return counts
