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
from importlib.metadata import version
from pathlib import Path

import psutil

from pipeline import strategies
from pipeline.emulation.nodes import PLAIN, WITH_DELAY, why_not
from pipeline.errors import SamestepError, UnsupportedError
from pipeline.machine import image as images
from pipeline.machine.facts import cpu_model, driver_version
from pipeline.machine.limits import cpu_quota, usable_cores
from pipeline.training.devices import why_no_cuda, without_kernels

OK, MISSING, NOTE, BROKEN = "ok", "missing", "note", "broken"


@dataclass(frozen=True)
class Finding:
    """One line: whether it is there, what was seen, and how to get it where it is missing.

    `broken`: a file of this checkout cannot be used. A `note` is a fact, or a probe that failed.
    """

    status: str
    text: str
    fix: str = ""


ok, missing, note = (partial(Finding, status) for status in (OK, MISSING, NOTE))

GIBIBYTE = 2**30
IMAGE = Path("images") / "samestep.sif"
SETUP = "run `make setup`"


def torch() -> Finding:
    """Versions, and the CUDA that torch was built for."""
    try:
        import torch
    except ImportError as error:
        return missing(str(error), SETUP)
    cuda = torch.version.cuda
    build = f"built for CUDA {cuda}" if cuda else "a CPU build"
    return ok(f"{torch.__version__}, {build}, Python {platform.python_version()} in {sys.prefix}")


def cuda() -> Finding:
    """Devices that torch sees, the driver and NCCL."""
    import torch

    driver = driver_version()
    if torch.cuda.is_available():
        seen, built_for = [], torch.cuda.get_arch_list()
        for device in range(torch.cuda.device_count()):
            if reason := without_kernels(torch.cuda.get_device_capability(device), built_for):
                return missing(f"{torch.cuda.get_device_name(device)}: {reason}", SETUP)
            facts = torch.cuda.get_device_properties(device)
            seen.append(f"{facts.name} ({facts.total_memory / GIBIBYTE:.0f} GiB)")
        nccl = "no NCCL"
        if torch.distributed.is_nccl_available():
            numbers = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
            nccl = f"NCCL {'.'.join(map(str, numbers))}"
        return ok(f"{', '.join(seen)}; driver {driver or 'unknown'}; {nccl}")
    if driver is None:
        return missing("no NVIDIA driver", "run on a node with one (in a container with --nv)")
    fix = "install a build of torch for this driver (`make setup`), or a newer driver"
    return missing(f"driver {driver}, but torch says: {why_no_cuda()}", fix)


def strategy(name: str) -> Finding:
    """A strategy that needs more than torch: whether it can be built here, and its packages."""
    chosen = strategies.load(name, {})
    try:
        chosen.check()
    except UnsupportedError as error:
        # A reason may end with the command that is the fix here.
        return missing(str(error).partition(f"; run `{chosen.install}`")[0], chosen.install)
    return ok(", ".join(f"{p} {version(p)}" for p in chosen.requires or ("torch",)))


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
    if inside := images.digest_from_within():
        return ok(f"this process is inside image {inside}")
    if runtimes := [path for name in images.RUNTIMES if (path := shutil.which(name))]:
        return ok(", ".join(runtimes))
    return missing(f"no {' or '.join(images.RUNTIMES)}", "install Apptainer or load its module")


def image() -> Finding:
    """The image file and its digest, strategies that it lacks, and whether its base was pinned."""
    try:
        stated = images.facts(IMAGE)
    except SamestepError as error:
        return missing(str(error).partition(";")[0], "make image")
    text = f"{IMAGE}, {stated['image_digest']}"
    for name, why in stated["versions"].get("strategies", {}).items():
        text += "" if why is None else f"; without {name}: {why}"
    base, digest = stated.get("base_image"), stated.get("base_digest") or "sha256:..."
    if base and "@sha256:" not in base:  # it may be another one later
        text += f"; its base {base} is not pinned: BASE_IMAGE={base}@{digest} does"
    return ok(text)


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


def failure(*command: str) -> str | None:
    """Last words of a command that failed, in one line; None where it ended well."""
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=15, check=False
    )
    output = "; ".join((done.stderr.strip() or done.stdout.strip() or "it failed").splitlines())
    return output[-300:] if done.returncode else None


def slurm() -> Finding:
    """A SLURM that answers."""
    if not all(shutil.which(name) for name in ("sinfo", "sbatch", "srun")):
        return missing("no sinfo, sbatch and srun", "run on a cluster's login node")
    if reason := failure("sinfo", "--noheader"):
        return missing(reason, "ask the cluster's administrators: SLURM is down")
    return ok("sinfo answers")


def emulated_network() -> Finding:
    """Nodes made for a moment: namespaces, shaped links, and whether a delay can be set too."""
    if (reason := why_not(PLAIN)) is not None:
        what, _, fix = reason.partition("; ")
        return missing(what, fix or "set cluster.network to loopback")
    delay = "delays" if why_not(WITH_DELAY) is None else "no delays (the kernel has no sch_netem)"
    return ok(f"namespaces, shaped links, {delay}")


def machine() -> Finding:
    """Cores that this process may use, memory, and free space where results are written."""
    quota, memory = cpu_quota(), psutil.virtual_memory()
    free = shutil.disk_usage(Path.cwd()).free / GIBIBYTE
    text = (
        f"{len(usable_cores())} of {os.cpu_count()} cores"
        f"{'' if quota is None else f' (a control group grants {quota:g})'}, {cpu_model()}; "
        f"{memory.available / GIBIBYTE:.1f} of {memory.total / GIBIBYTE:.1f} GiB of memory "
        f"available; {free:.0f} GiB free in this folder"
    )
    return ok(text) if free >= 5 else note(text, "free 5 GiB before a study")


PROBES: Mapping[str, Callable[[], Finding]] = {
    probe.__name__.replace("_", "-"): probe
    for probe in (machine, torch, cuda, apex, rdma, container, image, slurm, emulated_network)
}
