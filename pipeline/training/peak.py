"""The measured peak of a rank: what its matrix products reach, not what a datasheet says."""

from __future__ import annotations

from functools import partial

import torch

from pipeline.training.clock import Clock

SIZE, REPEATS = 8192, 10
CPU_FIRST_SIZE, CPU_REPEATS = 64, 3
CPU_SECONDS = 0.15
"""Time for the products on a CPU: some number formats are very slow there, so time is the bound."""


def measured_flops_per_second(device: torch.device, compute_dtype: str) -> float:
    """Best rate of square matrix products in the run's own number format, 2 x size^3 FLOPs each.

    `compute_dtype` is torch's name of a type, or `tf32`. On CUDA `REPEATS` products of `SIZE` timed
    together, after as many to warm up. Never dilated: on a shared core a product has full speed.
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
