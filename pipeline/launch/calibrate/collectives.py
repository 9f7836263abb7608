"""Seconds of collectives by size, between the emulated nodes of a study or over the loopback."""

from __future__ import annotations

import os
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any

from pipeline.emulation import links
from pipeline.emulation.cores import awake
from pipeline.emulation.dilation import dilate, places
from pipeline.emulation.nodes import Nodes
from pipeline.emulation.pacing import VARIABLE, Pacer
from pipeline.machine.control_groups import cpu_quota
from pipeline.machine.forks import measured_by, measuring
from pipeline.models import FP32, num_parameters
from pipeline.study.spec import RunSpec

SMALLEST, LARGEST = 1 << 10, 1 << 24
"""Bytes. Between them sizes grow by 16; the gradients of the study are the last."""
MOST_TIMES = 15
LONGEST = 1.5
"""Seconds of the machine; sizes that are to take longer are left to the line through the others."""
KINDS = ("all_reduce", "reduce_scatter", "all_gather", "send")


def measured(runs: Sequence[RunSpec], cores: Sequence[int], seconds: float) -> list[dict[str, Any]]:
    """For each link, number of ranks, kind and size: the median of the slowest rank's seconds."""
    cases = {}
    for run in runs:
        if run.world.size > 1:
            cases[run.world.link, run.world.size] = run
    timings = []
    for (link, ranks), run in cases.items():
        case = partial(_on_nodes, run, cores, seconds / len(cases))
        timings += [
            {"link": link.name if link else None, "ranks": ranks, **one}
            for one in measured_by(measuring(case, cores))
        ]
    return timings


def _on_nodes(run: RunSpec, cores: Sequence[int], seconds: float) -> list[dict[str, Any]]:
    """Build the nodes of a run below this process, and have a rank on each time all cases."""
    world, nodes = run.world, None
    dilation = dilate(world, len(cores)) if world.link else 1.0
    if world.link is not None:
        own = places(world.nodes, world.cores_per_node or 1, cores)
        nodes = Nodes(own, world.link, dilation)
    sizes, most = [SMALLEST], min(LARGEST, FP32 * num_parameters(run.model))
    while sizes[-1] < most:
        sizes.append(min(16 * sizes[-1], most))
    awaken = awake(cores) if nodes and cpu_quota() is None else nullcontext()
    with awaken, TemporaryDirectory() as folder:
        ranks, meeting = [], f"file://{folder}/meeting"
        for rank in range(world.size):
            node = rank // world.ranks_per_node
            work = partial(_times, meeting, rank, world.size, dilation, sizes, seconds)
            ranks.append(measuring(partial(_inside, nodes, node, work), cores))
        each = [measured_by(one) for one in ranks]
    return [
        {"kind": same[0]["kind"], "bytes": same[0]["bytes"],
         "seconds": max(one["seconds"] for one in same)}
        for same in zip(*each, strict=True)
    ]  # fmt: skip


def _inside(
    nodes: Nodes | None, node: int, work: Callable[[], list[dict[str, Any]]]
) -> list[dict[str, Any]]:
    """Do the work of a rank in the network and on the cores of its node."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo" if nodes is None else links.INTERFACE
    with nullcontext() if nodes is None else nodes.within(node):
        return work()


def _times(
    meeting: str, rank: int, size: int, factor: float, sizes: Sequence[int], seconds: float
) -> list[dict[str, Any]]:
    """Be a rank: join the others, and time each kind and size a fixed number of times."""
    if factor > 1:
        os.environ[VARIABLE] = str(factor)
    os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"  # nodes have no names
    import torch
    import torch.distributed as dist

    warnings.simplefilter("ignore", FutureWarning)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=size)
    pacer = Pacer(factor)
    pacer.start()
    each = seconds / (len(sizes) * len(KINDS))
    medians = []
    for kind in KINDS:
        for place, count in enumerate(sizes):
            work = _work(kind, max(1, count // 4 // size), rank, size)
            took = [_once(work, pacer) for _ in range(3)]
            # All ranks make as many, by what the slowest of them took.
            most = torch.tensor([max(took[1:])])
            dist.all_reduce(most, dist.ReduceOp.MAX)
            again = int(each / (factor * float(most)))
            took = took[1:] + [_once(work, pacer) for _ in range(min(MOST_TIMES, again))]
            medians.append({"kind": kind, "bytes": count, "seconds": statistics.median(took)})
            larger = sizes[min(place + 1, len(sizes) - 1)] / count
            if place and factor * float(most) * larger > LONGEST:
                break
    dist.barrier()
    dist.destroy_process_group()
    return medians


def _once(work: Callable[[], object], pacer: Pacer) -> float:
    """Seconds of the emulated cluster of one collective that all ranks begin together."""
    import torch.distributed as dist

    dist.barrier()
    pacer.waited()
    before = time.perf_counter()
    work()
    pacer.waited()
    return (time.perf_counter() - before) / pacer.dilation


def _work(kind: str, piece: int, rank: int, size: int) -> Callable[[], object]:
    """One collective over `size` pieces of so many numbers."""
    import torch
    import torch.distributed as dist

    from pipeline.parallel.group import ring_reduce_scatter

    whole = torch.zeros(piece * size)
    own = torch.zeros(piece)
    world = dist.group.WORLD
    assert world is not None
    if kind == "all_reduce":
        return lambda: dist.all_reduce(whole)
    if kind == "reduce_scatter":
        return lambda: ring_reduce_scatter(whole, world)
    if kind == "all_gather":
        return lambda: dist.all_gather_into_tensor(whole, own)

    def send() -> None:
        if rank == 0:
            dist.send(whole, 1)
        elif rank == 1:
            dist.recv(whole, 0)

    return send
