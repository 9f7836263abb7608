"""Wall time of device work: synchronise, run, synchronise."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any, TypeVar

import torch

T = TypeVar("T")
EMPTY_TIMINGS = 1000


class Clock:
    """Times calls on `device`, in seconds of the monotonic clock divided by `dilation`."""

    def __init__(self, device: torch.device, dilation: float = 1.0) -> None:
        self.device, self.dilation = device, dilation

    def time(self, call: Callable[[], T]) -> tuple[T, float]:
        """The result of `call` and the seconds until the device has finished it."""
        self._synchronise()
        start = time.perf_counter()
        result = call()
        self._synchronise()
        return result, (time.perf_counter() - start) / self.dilation

    def overhead(self) -> float:
        """Seconds that timing itself takes: the median of `EMPTY_TIMINGS` timings of nothing."""
        return statistics.median(self.time(_nothing)[1] for _ in range(EMPTY_TIMINGS))

    def stamp(self) -> Any:
        """A moment in the device's own order of work: an event on a GPU, else the time now."""
        if self.device.type != "cuda":
            return time.perf_counter()
        event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def between(self, start: Any, stop: Any) -> float:
        """Seconds from one stamp to a later one; the device must have passed both."""
        if self.device.type != "cuda":
            return float(stop - start) / self.dilation
        return float(start.elapsed_time(stop)) / 1000 / self.dilation

    def _synchronise(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def _nothing() -> None:
    pass
