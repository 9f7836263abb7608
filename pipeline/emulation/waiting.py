"""Waiting on an emulated node: asleep, so that its core is free for the node that is waited for."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

VARIABLE = "SAMESTEP_DILATION"
"""Seconds of this machine for one of the run, set for ranks on emulated nodes alone."""

PAUSE_SECONDS = 1e-4
"""Between two looks, in seconds of the run: a small part of a step."""


def dilation() -> float:
    """By how much a wait of so many seconds must be stretched; 1 where no node is emulated."""
    return float(os.environ.get(VARIABLE, "1"))


def asleep(done: Callable[[], bool]) -> None:
    """On an emulated node return when `done()` is true, asleep between two looks; else at once."""
    if VARIABLE not in os.environ:
        return
    pause = PAUSE_SECONDS * dilation()
    while not done():
        time.sleep(pause)
