"""One function for each thing that a run may need; each probe may fail without the others."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pipeline.errors import SamestepError, UnsupportedError
from pipeline.training.devices import why_no_cuda, without_kernels

OK, MISSING, NOTE, BROKEN = "ok", "missing", "note", "broken"


@dataclass(frozen=True)
class Finding:
    """One line: whether it is there, what was seen, and how to get it where it is missing.

    `broken`: a file of this checkout, such as a strategy or a study, cannot be used. A `note` is a
    fact to know, or a probe that failed.
    """

    status: str
    text: str
    fix: str = ""


ok, missing, note = (partial(Finding, status) for status in (OK, MISSING, NOTE))

GIBIBYTE = 2**30
SECONDS = 15
"""Patience with another program."""

IMAGE = Path("images") / "samestep.sif"
CPU_BF16 = ("avx512_bf16", "amx_bf16", "bf16")
BUILDERS = ("docker", "buildah", "apptainer")
FREE_GIB = 5
_SETUP = "run `make setup`"
_GPU_NODE = "run on a node with an NVIDIA GPU and its driver (in a container with --nv)"


def python() -> Finding:
    """Version and environment; an older one than 3.11 does not come so far."""
    return ok(f"{platform.python_version()} in {sys.prefix}")


def torch() -> Finding:
    """Version and the CUDA that it was built for."""
    try:
        import torch
    except ImportError as error:
        return missing(str(error), _SETUP)
    cuda = torch.version.cuda
    return ok(f"{torch.__version__}, {f'built for CUDA {cuda}' if cuda else 'a CPU build'}")


def cuda() -> Finding:
    """Devices that torch sees, and the driver."""
    import torch

    if torch.cuda.is_available():
        seen, built_for = [], torch.cuda.get_arch_list()
        for device in range(torch.cuda.device_count()):
            reason = without_kernels(torch.cuda.get_device_capability(device), built_for)
            if reason is not None:
                return missing(f"{torch.cuda.get_device_name(device)}: {reason}", _SETUP)
            facts = torch.cuda.get_device_properties(device)
            seen.append(f"{facts.name} ({facts.total_memory / GIBIBYTE:.0f} GiB)")
        return ok(f"{', '.join(seen)}; driver {_driver() or 'unknown'}")
    driver = _driver()
    if driver is None:
        return missing("no NVIDIA driver", _GPU_NODE)
    fix = "install a build of torch for this driver (`make setup`), or a newer driver"
    return missing(f"driver {driver}, but torch says: {why_no_cuda()}", fix)


def _driver() -> str | None:
    import pynvml

    try:
        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    except pynvml.NVMLError:
        return None


def cpu_bf16() -> Finding:
    """Units for bfloat16 products, without which `amp_*` is slow on a CPU."""
    words = set(Path("/proc/cpuinfo").read_text(encoding="utf-8").split())
    flags = [flag for flag in CPU_BF16 if flag in words]
    if flags:
        return ok(", ".join(flags))
    return note("no bf16 units, so amp_* cells run correctly and slowly on this processor")


def gloo() -> Finding:
    """torch's backend between CPUs."""
    import torch.distributed as dist

    there = dist.is_available() and dist.is_gloo_available()
    return ok("in torch") if there else missing("not in this torch", _SETUP)


def nccl() -> Finding:
    """torch's backend between GPUs."""
    import torch
    import torch.distributed as dist

    if dist.is_available() and dist.is_nccl_available() and torch.cuda.is_available():
        library: Any = torch.cuda.nccl
        return ok(".".join(str(part) for part in library.version()))
    return missing("needs a CUDA build of torch and a GPU", _GPU_NODE)


def strategy(name: str) -> Finding:
    """A strategy that needs more than torch: whether it can be built here, and its packages."""
    from pipeline import strategies

    chosen = strategies.load(name, {})
    try:
        chosen.check()
    except UnsupportedError as error:
        # A reason may end with the command that is the fix here.
        return missing(str(error).partition(f"; run `{chosen.install}`")[0], chosen.install)
    import importlib.metadata

    packages = chosen.requires or ("torch",)
    return ok(", ".join(f"{p} {importlib.metadata.version(p)}" for p in packages))


def apex() -> Finding:
    """NVIDIA Apex with `apex.amp`, on a GPU."""
    from pipeline.precision import make_precision

    try:
        make_precision("apex_o1", "cuda" if cuda().status == "ok" else "cpu")
    except UnsupportedError as error:
        return missing(str(error), "`make image` on NVIDIA's base image, on a node with a GPU")
    return ok("apex.amp imports")


def container() -> Finding:
    """A program that runs the image."""
    from pipeline.machine.image import RUNTIMES, digest_from_within

    if inside := digest_from_within():
        return ok(f"this process is inside image {inside}")
    runtimes = [path for name in RUNTIMES if (path := shutil.which(name))]
    fix = "install Apptainer or load its module"
    return ok(", ".join(runtimes)) if runtimes else missing(f"no {' or '.join(RUNTIMES)}", fix)


def image() -> Finding:
    """The image file and its digest, strategies that it lacks, and whether its base was pinned."""
    from pipeline.machine.image import locked_digest, strategies_without, unpinned_base

    try:
        facts = [f"{IMAGE}, {locked_digest(IMAGE)}"]
        facts += [f"without {name}: {why}" for name, why in strategies_without(IMAGE).items()]
        facts.append(unpinned_base(IMAGE) or "")
    except SamestepError as error:
        return missing(str(error).partition(";")[0], "make image")
    return ok("; ".join(filter(None, facts)))


def rdma() -> Finding:
    """Libraries by which NCCL reaches InfiniBand and RoCE, and the cards that the kernel shows."""
    absent = []
    for library in ("libibverbs.so.1", "librdmacm.so.1"):
        try:
            ctypes.CDLL(library)
        except OSError:
            absent.append(library)
    if not [*Path("/usr").glob("lib*/libibverbs/*"), *Path("/usr").glob("lib*/*/libibverbs/*")]:
        absent.append("providers of libibverbs")
    if absent:
        packages = "libibverbs1 ibverbs-providers librdmacm1"
        return missing(f"no {', '.join(absent)}", f"install {packages}; in an image: `make image`")
    folder = Path("/sys/class/infiniband")
    cards = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    return ok(f"libibverbs, librdmacm and providers; cards: {', '.join(cards) or 'none here'}")


def builders() -> Finding:
    """Programs that can build the image."""
    programs = [name for name in BUILDERS if shutil.which(name)]
    fix = f"install {', '.join(BUILDERS[:-1])} or {BUILDERS[-1]}, to build an image here"
    return ok(", ".join(programs)) if programs else missing("none", fix)


def slurm() -> Finding:
    """A SLURM that answers, with its partitions."""
    if not all(shutil.which(name) for name in ("sinfo", "sbatch", "srun")):
        return missing("no sinfo, sbatch and srun", "run on a cluster's login node")
    command = ("sinfo", "--noheader", "--format=%P %D nodes %G")
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["it failed"])[-1]
        return missing(reason, "ask the cluster's administrators: SLURM is down")
    return ok("; ".join(line.strip() for line in done.stdout.splitlines()) or "no partitions")


def emulated_network() -> Finding:
    """Nodes made for a moment: namespaces, shaped links, and whether a delay can be set too."""
    from pipeline.emulation.nodes import PLAIN, WITH_DELAY, why_not

    if (reason := why_not(PLAIN)) is not None:
        what, _, fix = reason.partition("; ")
        return missing(what, fix or "set cluster.network to loopback")
    delay = "delays" if why_not(WITH_DELAY) is None else "no delays (the kernel has no sch_netem)"
    return ok(f"namespaces, shaped links, {delay}")


def cores() -> Finding:
    """Cores that this process may use, and the quota where one is set."""
    from pipeline.machine.control_groups import cpu_quota, usable_cores
    from pipeline.machine.facts import cpu_model

    quota = cpu_quota()
    limit = "" if quota is None else f" (a control group grants {quota:g})"
    return ok(f"{len(usable_cores())} of {os.cpu_count()}{limit}, {cpu_model()}")


def memory() -> Finding:
    """Memory of the machine."""
    import psutil

    virtual = psutil.virtual_memory()
    return ok(f"{virtual.total / GIBIBYTE:.1f} GiB, {virtual.available / GIBIBYTE:.1f} available")


def disk() -> Finding:
    """Free space where results are written."""
    free = shutil.disk_usage(Path.cwd()).free / GIBIBYTE
    text = f"{free:.0f} GiB free in this folder"
    return ok(text) if free >= FREE_GIB else note(text, f"free {FREE_GIB} GiB before a study")


PROBES: Mapping[str, Callable[[], Finding]] = {
    probe.__name__.replace("_", "-"): probe
    for probe in (
        python, torch, cuda, cpu_bf16, gloo, nccl, apex, rdma, container, image, builders, slurm,
        emulated_network, cores, memory, disk,
    )
}  # fmt: skip
