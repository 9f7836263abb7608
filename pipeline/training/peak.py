"""The measured peak of a rank: what its matrix products reach, not what a datasheet says."""

from __future__ import annotations

import torch

from pipeline.training.clock import Clock

SIZE, REPEATS = 8192, 10
CPU_FIRST_SIZE, CPU_REPEATS = 64, 3
CPU_SECONDS = 0.15
"""Time for the products on a CPU: some number formats are very slow there, so time is the bound."""


def measured_flops_per_second(device: torch.device, compute_dtype: str) -> float:
    """Best rate of square matrix products in the run's own number format, 2 x size^3 FLOPs each.

    `compute_dtype` is torch's name of a type, or `tf32`. On CUDA `REPEATS` products of `SIZE` timed
    together, after as many that warm the device up; on a CPU products of growing size under the
    rank's own threads, about `CPU_SECONDS` of them. The clock is never dilated: a product on a core
    that nodes share runs at full speed.
    """
    dtype = torch.float32 if compute_dtype == "tf32" else getattr(torch, compute_dtype)
    clock = Clock(device)
    if device.type == "cuda":
        torch.cuda.empty_cache()
        return _block_rate(SIZE, dtype, clock)
    return _cpu_peak(dtype, clock)


def _block_rate(size: int, dtype: torch.dtype, clock: Clock) -> float:
    """FLOP/s of `REPEATS` products of (size, size) matrices between two synchronisations."""
    a = torch.randn(size, size, device=clock.device).to(dtype)
    result = torch.empty_like(a)

    def block() -> None:
        for _ in range(REPEATS):
            torch.mm(a, a, out=result)

    clock.time(block)
    return REPEATS * 2 * size**3 / clock.time(block)[1].seconds


def _cpu_peak(dtype: torch.dtype, clock: Clock) -> float:
    """Double the size while the products of the next one, eight times the work, fit in the time.

    Best of all: ranks that share cores interrupt one another, and a short product can escape that.
    """
    size, best, left = CPU_FIRST_SIZE, 0.0, CPU_SECONDS
    while True:
        rates, flops = _rates(size, dtype, clock, CPU_REPEATS), 2 * size**3
        best, left = max(best, *rates), left - sum(flops / rate for rate in rates)
        again = CPU_REPEATS * flops / max(rates)
        if again > left:
            return best
        if 8 * again < left:
            size *= 2


def _rates(size: int, dtype: torch.dtype, clock: Clock, repeats: int) -> list[float]:
    """FLOP/s of each of `repeats` products of (size, size) matrices."""
    a = torch.randn(size, size, device=clock.device).to(dtype)
    return [2 * size**3 / clock.time(lambda: a @ a)[1].seconds for _ in range(repeats)]
