"""The emulated nodes of a run below this process, with ranks that have joined torch's group."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from tempfile import TemporaryDirectory
from typing import TypeVar

from pipeline.emulation import links
from pipeline.emulation.dilation import awake, dilate, places
from pipeline.emulation.nodes import Nodes
from pipeline.emulation.pacing import VARIABLE
from pipeline.machine.processes import at_once, stay_with
from pipeline.resolved import ResolvedRun
from pipeline.study.spec import WorldSpec

T = TypeVar("T")


def on_nodes(run: ResolvedRun, cores: Sequence[int], work: Callable[[str, float], T]) -> list[T]:
    """Values of `work(folder, dilation)` of all ranks of a run; the folder is theirs together.

    Without emulated nodes they are on the loopback. In this process torch must not have
    computed yet: its threads would not survive the fork.
    """
    (values,) = at_once([partial(_build, run.spec.world, cores, work)], [cores])
    return values  # type: ignore[no-any-return]


def _build(world: WorldSpec, cores: Sequence[int], work: Callable[[str, float], T]) -> list[T]:
    # Once for all ranks; it starts no thread, which would not survive the fork.
    import torch.distributed.device_mesh  # noqa: F401

    nodes, dilation = None, 1.0
    if world.link is not None:
        dilation = dilate(world, len(cores))
        own = places(world.nodes, world.cores_per_node or 1, cores)
        parent = os.getppid()
        nodes = Nodes(own, world.link, dilation)
        stay_with(parent)  # entering a user namespace cancels the signal at its end

    def be(folder: str, rank: int) -> T:
        node, local = divmod(rank, world.ranks_per_node)
        # What a launcher would set.
        variables = {
            "RANK": rank, "WORLD_SIZE": world.size,
            "LOCAL_RANK": local, "LOCAL_WORLD_SIZE": world.ranks_per_node,
            "MASTER_ADDR": links.address(0) if nodes else "127.0.0.1",
            "GLOO_SOCKET_IFNAME": links.INTERFACE if nodes else "lo",
            "TORCH_CPP_LOG_LEVEL": "ERROR",  # nodes have no names
        } | ({VARIABLE: dilation} if nodes else {})  # fmt: skip
        os.environ.update({name: str(value) for name, value in variables.items()})
        with nodes.within(node) if nodes else nullcontext():
            import torch
            import torch.distributed as dist

            warnings.simplefilter("ignore", FutureWarning)
            torch.set_num_threads(1)
            meeting = f"file://{folder}/meeting"
            dist.init_process_group("gloo", meeting, rank=rank, world_size=world.size)
            value = work(folder, dilation)
            dist.barrier()
            dist.destroy_process_group()
            return value

    with awake(cores if nodes else ()), TemporaryDirectory() as folder:
        ranks = [partial(be, folder, rank) for rank in range(world.size)]
        values: list[T] = at_once(ranks, [cores] * world.size)
    return values
