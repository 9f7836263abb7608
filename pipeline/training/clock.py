"""Wall time of device work: synchronise, run, synchronise."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import torch

T = TypeVar("T")


class Clock:
    """Times calls on `device`, in seconds of the monotonic clock."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def time(self, call: Callable[[], T]) -> tuple[T, float]:
        """The result of `call` and the seconds until the device has finished it."""
        self._synchronise()
        start = time.perf_counter()
        result = call()
        self._synchronise()
        return result, time.perf_counter() - start

    def _synchronise(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
