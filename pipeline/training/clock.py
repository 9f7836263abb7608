"""Wall time of device work: synchronise, run, synchronise."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import torch

from pipeline.emulation.pacing import UNPACED, Pacer

T = TypeVar("T")


class Spent(NamedTuple):
    """Seconds of the run's clock; CPU seconds of the thread that computes, its waits left out."""

    seconds: float
    cpu_seconds: float


EMPTY_TIMINGS = 1000


class Clock:
    """Times calls on `device`, in seconds of the monotonic clock divided by the pacer's dilation.

    Both ends of a call are moments at which the rank has paid for its CPU seconds.
    """

    def __init__(self, device: torch.device, pacer: Pacer = UNPACED) -> None:
        self.device, self.pacer = device, pacer

    def time(
        self, call: Callable[[], T], barrier: Callable[[], None] | None = None
    ) -> tuple[T, Spent]:
        """The result of `call` and what passed until the device had finished it.

        `barrier` comes before the clock starts, so that what another rank did outside its step (a
        checkpoint, a read of its batch) is not waited for within this one's.
        """
        self._synchronise()
        # What the rank did before is paid for here, so that others may wait for it at the barrier.
        self.pacer.settle()
        if barrier is not None:
            barrier()
            self._synchronise()
            self.pacer.start()
        start, cpu = self.pacer.moment(), self.pacer.cpu_seconds()
        result = call()
        self._synchronise()
        self.pacer.settle()
        cpu_seconds = self.pacer.cpu_seconds() - cpu
        return result, Spent((time.perf_counter() - start) / self.pacer.dilation, cpu_seconds)

    def overhead(self) -> float:
        """Seconds that timing itself takes, unpaced: the median of `EMPTY_TIMINGS` of nothing."""
        unpaced = Clock(self.device)
        timings = [unpaced.time(lambda: None) for _ in range(EMPTY_TIMINGS)]
        return statistics.median(spent.seconds for _, spent in timings)

    def stamp(self) -> Any:
        """A moment in the device's own order of work: an event on a GPU, else the time now."""
        if self.device.type != "cuda":
            return self.pacer.moment()
        event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def between(self, start: Any, stop: Any) -> float:
        """Seconds from one stamp to a later one; the device must have passed both."""
        if self.device.type != "cuda":
            return float(stop - start) / self.pacer.dilation
        return float(start.elapsed_time(stop)) / 1000 / self.pacer.dilation

    def _synchronise(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
