"""Bus bandwidth of torch's all-reduce over Gloo on emulated nodes."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from bench.emulated.undisturbed import Machine
from pipeline.emulation import links, probes
from pipeline.emulation.cores import Shares, awake
from pipeline.emulation.dilation import dilate, places
from pipeline.emulation.nodes import Nodes, enter_private_network
from pipeline.study.link import LinkSpec
from pipeline.study.spec import WorldSpec

BUCKETS, BUCKET_SECONDS = 16, 0.06
"""Under way at once, as those of DDP are: a ring alone leaves its link idle at both ends, for one
part in 2 (n - 1) + 1. Seconds are of the link's rate: 7.5 MB at 1 Gbit/s."""

PORT = 29501


def bandwidth(nodes: int, rate: float, repeats: int) -> tuple[list[float], dict[str, int]]:
    """2 (n - 1) / n x bytes / seconds over the rate, for each repeat; what was disturbed."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        machine = Machine()
        reached = _all_reduce(nodes, rate, repeats, machine)
        os.write(write, json.dumps([reached, machine.told()]).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as stream:
        reached, told = json.load(stream)
    os.waitpid(child, 0)
    return [bits / (rate * 1e6) for bits in reached], told


def _all_reduce(nodes: int, rate: float, repeats: int, machine: Machine) -> list[float]:
    import torch
    import torch.distributed as dist

    cores = sorted(os.sched_getaffinity(0))
    spec = WorldSpec(nodes, 1, "cpu", "gloo", "emulated", cores_per_node=1)
    dilation = dilate(spec, len(cores))
    enter_private_network()
    world = Nodes(nodes, 1, LinkSpec("bench", rate), dilation.factor)
    shares = Shares(places(nodes, 1, cores))

    @contextmanager
    def node(place: int) -> Iterator[None]:
        world.enter(0, place)
        os.environ.update(
            RANK=str(place), WORLD_SIZE=str(nodes), MASTER_ADDR=links.address(0, 0),
            MASTER_PORT=str(PORT), GLOO_SOCKET_IFNAME=links.INTERFACE, OMP_NUM_THREADS="1",
        )  # fmt: skip
        with shares.of(place):
            yield

    def probe(wait_for_all: Any) -> float:
        dist.init_process_group("gloo")
        buckets = [torch.zeros(round(BUCKET_SECONDS * rate * 1e6 / 32)) for _ in range(BUCKETS)]
        dist.all_reduce(buckets[0])
        wait_for_all()
        start = time.perf_counter()
        for work in [dist.all_reduce(bucket, async_op=True) for bucket in buckets]:
            work.wait()
        seconds = (time.perf_counter() - start) / dilation.factor
        bits = 2 * (nodes - 1) / nodes * 32 * sum(bucket.numel() for bucket in buckets)
        dist.barrier()
        time.sleep(0.2)
        return bits / seconds

    # The slowest rank's; all of them wait for one another.
    with awake(cores):
        once = partial(probes.measure, [probe] * nodes, node)
        return [min(machine.undisturbed(once)) for _ in range(repeats)]
