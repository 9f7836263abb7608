"""The device of a rank: the CPU, or GPUs that no other rank of its machine takes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.errors import LaunchError, UnsupportedError
from pipeline.machine import image
from pipeline.resolved import ResolvedRun

FILES = Path("/dev")


def rank_of(environment: Mapping[str, str]) -> int:
    """The rank in the whole run, as torchrun tells it; 0 without a launcher."""
    return int(environment.get("RANK", "0"))


def gpu_index(run: ResolvedRun, environment: Mapping[str, str], num_gpus: int) -> int:
    """Index of the rank's first GPU among the `num_gpus` that torch sees on this machine.

    The launchers' local rank starts at 0 on every node, so it tells ranks apart only where each
    node is a machine. Where nodes share one, the rank itself does. Raises UnsupportedError where
    the machine has not enough GPUs for all ranks on it.
    """
    world, needed = run.spec.world, run.gpus_per_machine
    if needed > num_gpus:
        visible = environment.get("CUDA_VISIBLE_DEVICES")
        limited = f" with CUDA_VISIBLE_DEVICES={visible}" if visible is not None else ""
        nodes = world.nodes // world.num_machines
        raise UnsupportedError(
            f"{nodes} x {world.ranks_per_node} ranks need {needed} GPUs on this machine, torch "
            f"sees {num_gpus}{limited}; lower cluster.nodes or cluster.ranks_per_node"
        )
    place = environment.get("RANK" if world.num_machines == 1 else "LOCAL_RANK", "0")
    return int(place) * run.layout.devices_per_process


def without_kernels(capability: tuple[int, int], built_for: Sequence[str]) -> str | None:
    """Reason why a GPU of this compute capability cannot run this torch; None where it can.

    `built_for` are the architectures of `torch.cuda.get_arch_list()`: `sm_80` runs on 8.0 and later
    minor versions, `compute_90` is compiled on the spot for 9.0 and everything after it.
    """
    major, minor = capability
    known = [name for name in built_for if name.startswith(("sm_", "compute_"))]
    if not known:
        return None  # a build for other makers' devices, or one that does not say
    for name in known:
        kind, _, number = name.partition("_")
        digits = number.rstrip("af")
        built = int(digits[:-1]), int(digits[-1])
        if kind == "sm" and built[0] == major and built[1] <= minor:
            return None
        if kind == "compute" and built <= capability:
            return None
    return (
        f"this torch has no kernels for compute capability {major}.{minor} (it is built for "
        f"{', '.join(built_for)}); install a build for it (for a V100 one for CUDA 12.6), or make "
        "the image on a base that has it (BASE_IMAGE)"
    )


def why_no_cuda() -> str:
    """Torch's own words on CUDA that is not available, in one line without a full stop."""
    import torch

    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except (RuntimeError, AssertionError) as error:
        return " ".join(str(error).split()).rstrip(".") or type(error).__name__
    return "it gives no reason"


def choose(run: ResolvedRun) -> Any:
    """This rank's torch.device, made current where it is a GPU.

    Raises UnsupportedError where the machine lacks it, LaunchError where only the container or the
    driver does.
    """
    import torch

    if run.spec.world.device == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        has_gpu = bool(list(FILES.glob("nvidia[0-9]*")))
        if has_gpu and image.digest_from_within():
            raise LaunchError(
                "the machine has a GPU, but the container was started without its driver; add "
                "`--nv` (the profile workflow/profiles/container does)"
            )
        words = why_no_cuda()
        if has_gpu or "too old" in words:
            # The machine could do it, so nothing is kept that says that it cannot.
            raise LaunchError(
                f"the machine has a GPU that torch cannot use: {words}; mend its driver, or "
                "install a build of torch for this driver"
            )
        raise UnsupportedError(
            f"the spec says device cuda, but torch sees no CUDA device: {words}; run on a GPU node "
            "(in a container with --nv) or set cluster.device to cpu"
        )
    index = gpu_index(run, os.environ, torch.cuda.device_count())
    torch.cuda.set_device(index)
    capability = torch.cuda.get_device_capability(index)
    if reason := without_kernels(capability, torch.cuda.get_arch_list()):
        raise UnsupportedError(f"{torch.cuda.get_device_name(index)}: {reason}")
    return torch.device("cuda", index)
