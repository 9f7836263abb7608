"""Peak memory and mean utilisation of one rank, sampled during the training."""

from __future__ import annotations

import os
import resource
import time
from contextlib import suppress
from typing import Any

import psutil
import pynvml
import torch

from pipeline.machine.facts import placement, steal_seconds


def memory_bytes(device: torch.device) -> int:
    """Memory in use now, of the kind that `peak_memory_bytes` is: resident set or allocated."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    return int(psutil.Process().memory_info().rss)


class Sampler:
    """From `start` to `stop`: CPU seconds per second of wall time, or NVML's GPU utilisation.

    NVML is read at every `sample` (once per step); on a CPU two readings are enough. Where time is
    dilated, `dilation` seconds of the wall are one second.
    """

    def __init__(self, device: torch.device, dilation: float = 1.0) -> None:
        self.device, self.dilation = device, dilation
        self._gpu_percents: list[float] = []
        self._process_bytes: list[int] = []
        self._start = self._stop = (0.0, 0.0, 0.0)
        self._placement: dict[str, Any] = {}

    def start(self) -> None:
        """Begin at the first timed step; the peak of memory covers the whole run."""
        self._start = self._reading()
        self._placement = placement()
        self._gpu_percents.clear()

    def sample(self) -> None:
        """After a step: one NVML reading (percent of the last sampling period)."""
        self._stop = self._reading()
        if self.device.type != "cuda":
            return
        # NVML has no utilisation of a slice of a GPU (MIG, vGPU).
        with suppress(RuntimeError, ImportError, pynvml.NVMLError):
            self._gpu_percents.append(float(torch.cuda.utilization(self.device)))
        # Memory of this process with NCCL's buffers and the CUDA context; none in a container with
        # process numbers of its own. Whatever error torch or NVML raise, no fact must end a run.
        with suppress(Exception):
            pynvml.nvmlInit()
            uuid = f"GPU-{torch.cuda.get_device_properties(self.device).uuid}"
            handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
            processes = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
            own = (p.usedGpuMemory for p in processes if p.pid == os.getpid())
            self._process_bytes += [used for used in own if used is not None]

    def summary(self) -> dict[str, Any]:
        """Memory, utilisation, `steal_share` and `placement`, as the schema of a record has them.

        The utilisation is None, and `peak_process_bytes` is left out, where NVML gives none.
        """
        cpu, wall, stolen = (b - a for a, b in zip(self._start, self._stop, strict=True))
        share = stolen / (wall * (psutil.cpu_count() or 1)) if wall > 0 else 0.0
        about = {"steal_share": min(1.0, max(0.0, share)), **self._placement}
        if self.device.type == "cuda":
            percents, used = self._gpu_percents, self._process_bytes
            return about | {
                "peak_memory_bytes": torch.cuda.max_memory_allocated(self.device),
                "peak_reserved_bytes": torch.cuda.max_memory_reserved(self.device),
                "mean_utilisation": sum(percents) / len(percents) / 100 if percents else None,
                **({"peak_process_bytes": max(used)} if used else {}),
            }
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # in KiB
        return about | {
            "peak_memory_bytes": peak * 1024,
            "mean_utilisation": cpu / wall * self.dilation if wall > 0 else 0.0,
        }

    def _reading(self) -> tuple[float, float, float]:
        """CPU seconds of the process, the clock, and seconds that the host took."""
        return time.process_time(), time.monotonic(), steal_seconds()
