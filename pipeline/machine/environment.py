"""Surroundings of one rank: machine, processor, kernel, device and the interface to the others.

Each rank asks for itself (`rank_environment`), since ranks of one run may be on different machines.
`steal_seconds` is what the host of a virtual machine takes from it. What a machine does not tell is
None, never a guess.
"""

from __future__ import annotations

import os
import platform
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from pipeline.machine import addresses
from pipeline.machine.control_groups import usable_cores
from pipeline.machine.facts import cpu_model

FIRMWARE = Path("/sys/class/dmi/id/sys_vendor")
HYPERVISOR = Path("/sys/hypervisor/type")
CPU_FLAGS = Path("/proc/cpuinfo")


def rank_environment(device: Any, *, alone: bool) -> dict[str, Any]:
    """The facts of a rank on a `torch.device`, as the schema of a record has them.

    `alone` says that there is no other rank, so no interface. Ranks on GPUs meet over NCCL, which
    chooses its network by itself and tells of it (see nccl.py).
    """
    interface = None if alone or device.type == "cuda" else interface_to_others()
    return {
        "host": socket.gethostname(),
        "cpu_model": cpu_model(),
        "num_cores": len(usable_cores()),
        "memory_bytes": psutil.virtual_memory().total,
        "kernel": f"{platform.system()} {platform.release()}",
        "virtualisation": virtualisation(),
        **_device(device),
        "interface": interface,
        "interface_mbits": None if interface is None else interface_mbits(interface),
    }


def interface_to_others() -> str | None:
    """The interface that Gloo was told to use; None where it chose by itself."""
    named = os.environ.get(addresses.INTERFACE)
    return named.partition(",")[0] if named else None


def interface_mbits(interface: str) -> int | None:
    """The rate in Mbit/s that the interface's driver states; None where it states none."""
    stats = psutil.net_if_stats().get(interface)
    # 0 is unknown, and drivers of virtual interfaces say -1, which arrives as 65535.
    return int(stats.speed) if stats is not None and 0 < stats.speed < 0xFFFF else None


def virtualisation() -> str | None:
    """Who made the virtual machine, by its firmware; None where the processor shows no hypervisor.

    A container shares its machine's kernel and shows as that machine does.
    """
    flags = _read(CPU_FLAGS)
    if " hypervisor" not in flags and not _read(HYPERVISOR):
        return None
    return _read(HYPERVISOR) or _read(FIRMWARE) or "a hypervisor"


def placement() -> dict[str, Any]:
    """The cores that this process may run on, and the clock of the slowest of them in MHz.

    None for the clock where the kernel tells none; a virtual machine may tell a nominal one.
    """
    cores, clocks, core = sorted(os.sched_getaffinity(0)), list[float](), None
    for line in _read(CPU_FLAGS).splitlines():
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


def _device(device: Any) -> dict[str, str | None]:
    """Name, driver and NCCL of a GPU, each None where there is none to ask.

    A fact that cannot be had must not end a run that has trained, and each driver has errors of its
    own.
    """
    gpu: dict[str, str | None] = dict.fromkeys(("gpu", "driver", "nccl"))
    if device.type != "cuda":
        return gpu
    import torch

    gpu["gpu"] = torch.cuda.get_device_name(device)
    with suppress(Exception):
        import pynvml

        pynvml.nvmlInit()
        gpu["driver"] = str(pynvml.nvmlSystemGetDriverVersion())
    with suppress(Exception):
        from torch.cuda import nccl

        version: tuple[int, ...] = nccl.version()  # type: ignore[no-untyped-call]
        gpu["nccl"] = ".".join(map(str, version))
    return gpu
