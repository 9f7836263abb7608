"""Wall time of device work (synchronise, run, synchronise), and the peak of a rank by it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch

from pipeline.emulation.pacing import UNPACED, Pacer

T = TypeVar("T")

EMPTY_TIMINGS = 1000

SIZE, REPEATS = 8192, 10
CPU_FIRST_SIZE, CPU_REPEATS = 64, 3
CPU_SECONDS = 0.15
"""Time for the products on a CPU: some number formats are very slow there, so time is the bound."""


class Spent(NamedTuple):
    """Seconds of the run's clock; CPU seconds of the thread that computes, its waits left out."""

    seconds: float
    cpu_seconds: float


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


def measured_flops_per_second(device: torch.device, compute_dtype: str) -> float:
    """Best rate of square matrix products in the run's own number format, 2 x size^3 FLOPs each.

    What products reach, not what a datasheet says. `compute_dtype` is torch's name of a type, or
    `tf32`. On CUDA `REPEATS` products of `SIZE` timed together, after as many to warm up. Never
    dilated: on a shared core a product has full speed.
    """
    dtype = torch.float32 if compute_dtype == "tf32" else getattr(torch, compute_dtype)
    clock = Clock(device)
    if device.type == "cuda":
        torch.cuda.empty_cache()
        a = torch.randn(SIZE, SIZE, device=device).to(dtype)
        result = torch.empty_like(a)

        def block() -> None:
            for _ in range(REPEATS):
                torch.mm(a, a, out=result)

        clock.time(block)
        return REPEATS * 2 * SIZE**3 / clock.time(block)[1].seconds
    # Under the rank's own threads the size doubles while the products of the next one, eight times
    # the work, fit in the time. The best of all is kept: ranks that share cores interrupt one
    # another, and a short product can escape that.
    size, best, left = CPU_FIRST_SIZE, 0.0, CPU_SECONDS
    while True:
        a, flops = torch.randn(size, size).to(dtype), 2 * size**3
        taken = [clock.time(partial(torch.mm, a, a))[1].seconds for _ in range(CPU_REPEATS)]
        best, left = max(best, flops / min(taken)), left - sum(taken)
        again = CPU_REPEATS * min(taken)
        if again > left:
            return best
        if 8 * again < left:
            size *= 2
