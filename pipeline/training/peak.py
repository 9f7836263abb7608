"""The measured peak of a CUDA device: what its matrix products reach, not its datasheet."""

from __future__ import annotations

import torch

from pipeline.training.clock import Clock

SIZE, REPEATS = 8192, 10


def measured_flops_per_second(device: torch.device, compute_dtype: str) -> float:
    """Best rate of `REPEATS` square products of `SIZE`, in the run's own number format.

    `compute_dtype` is torch's name of a type, or `tf32`. One product is 2 x SIZE^3 FLOPs.
    """
    torch.cuda.empty_cache()
    dtype = torch.float32 if compute_dtype == "tf32" else getattr(torch, compute_dtype)
    a = torch.randn(SIZE, SIZE, device=device, dtype=dtype)
    clock = Clock(device)
    seconds = [clock.time(lambda: a @ a)[1] for _ in range(REPEATS)]
    return float(2 * SIZE**3 / min(seconds))
