"""Facts of a run for its record: versions, hardware, and the surroundings of each rank.

Each rank asks for itself (`rank_environment`), since ranks of one run may be on different machines.
What a machine does not tell is None, never a guess.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import socket
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

import pipeline
from pipeline.machine import addresses
from pipeline.machine.limits import usable_cores

CPU_INFO = Path("/proc/cpuinfo")
FIRMWARE = Path("/sys/class/dmi/id/sys_vendor")
HYPERVISOR = Path("/sys/hypervisor/type")
PACKAGES = ("torch", "numpy", "safetensors", "apex", "transformers", "tokenizers")


def loaded_versions(more: Iterable[str] = ()) -> dict[str, str]:
    """Versions of those of `PACKAGES` and `more` that this process has really imported."""
    versions = {"python": platform.python_version(), "samestep": pipeline.__version__}
    for name in (*PACKAGES, *more):
        if name in sys.modules:
            versions[name] = str(getattr(sys.modules[name], "__version__", None) or "unknown")
            if versions[name] == "unknown":
                with suppress(importlib.metadata.PackageNotFoundError):
                    versions[name] = importlib.metadata.version(name)
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        versions["cuda"] = str(torch.version.cuda)
    return versions


def hardware() -> dict[str, Any]:
    """CPU model, usable cores, memory in bytes and the names of the GPUs (NVML)."""
    import pynvml

    names: list[str] = []
    with suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        for index in range(pynvml.nvmlDeviceGetCount()):
            names.append("unknown")  # of a device that this process may not use
            with suppress(pynvml.NVMLError):
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                names[-1] = str(pynvml.nvmlDeviceGetName(handle))
    return _processor() | {"gpus": names}


def _processor() -> dict[str, Any]:
    return {
        "cpu_model": cpu_model(),
        "num_cores": len(usable_cores()),
        "memory_bytes": psutil.virtual_memory().total,
    }


def cpu_model() -> str:
    """The processor's name as the kernel tells it, else its architecture."""
    for line in _read(CPU_INFO).splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def rank_environment(device: Any, *, alone: bool) -> dict[str, Any]:
    """The facts of a rank on a `torch.device`, as the schema of a record has them.

    `alone` says that there is no other rank, so no interface. Ranks on GPUs meet over NCCL, which
    chooses its network by itself and tells of it (see nccl.py).
    """
    named = os.environ.get(addresses.INTERFACE)  # Gloo's; where none is named it chose by itself
    interface = named.partition(",")[0] if named and not alone and device.type != "cuda" else None
    stats = None if interface is None else psutil.net_if_stats().get(interface)
    # What the driver states: 0 is unknown, and virtual interfaces say -1, which arrives as 65535.
    mbits = int(stats.speed) if stats is not None and 0 < stats.speed < 0xFFFF else None
    gpu: dict[str, str | None] = dict.fromkeys(("gpu", "driver", "nccl"))
    if device.type == "cuda":
        torch = sys.modules["torch"]  # whose device this is; the planner never loads it
        gpu |= {"gpu": torch.cuda.get_device_name(device), "driver": driver_version()}
        with suppress(Exception):  # what cannot be had must end no run
            gpu["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    return {
        "host": socket.gethostname(),
        **_processor(),
        "kernel": f"{platform.system()} {platform.release()}",
        "virtualisation": virtualisation(),
        **gpu,
        "interface": interface,
        "interface_mbits": mbits,
    }


def driver_version() -> str | None:
    """Version of NVIDIA's driver; None where it cannot be had."""
    with suppress(Exception):
        import pynvml

        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    return None


def virtualisation() -> str | None:
    """Maker of the virtual machine, by its firmware; None without a hypervisor."""
    flags = _read(CPU_INFO)
    if " hypervisor" not in flags and not _read(HYPERVISOR):
        return None
    return _read(HYPERVISOR) or _read(FIRMWARE) or "a hypervisor"


def placement() -> dict[str, Any]:
    """Cores that this process may run on, and the clock of the slowest in MHz, if known."""
    cores, clocks, core = sorted(os.sched_getaffinity(0)), list[float](), None
    for line in _read(CPU_INFO).splitlines():
        name, _, value = (part.strip() for part in line.partition(":"))
        if name == "processor" and value.isdecimal():
            core = int(value)
        elif name == "cpu MHz" and core in cores:
            clocks.append(float(value))
    return {"cores": cores, "cpu_mhz": min(clocks, default=None)}


def steal_seconds() -> float:
    """Seconds, summed over all cores, that the host of this virtual machine took since it began."""
    return float(getattr(psutil.cpu_times(), "steal", 0.0))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
