"""The commands that start a run's ranks: torchrun, one launcher process for each node.

On one machine N nodes are N launchers on the loopback; every strategy is started the same way.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pipeline.spec import RunSpec
from pipeline.strategies.base import Layout

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Launch:
    """One command for each node, and the environment they share."""

    commands: tuple[tuple[str, ...], ...]
    environment: Mapping[str, str]
    threads_per_rank: int
    unsupported: str | None = None
    """Why this machine cannot start the run; then there are no commands."""


@dataclass(frozen=True)
class RunPaths:
    """Files of one run: its spec, the token shards, and the folder of its record."""

    spec: Path
    tokens: Path
    out: Path

    @property
    def ranks(self) -> Path:
        """Where the ranks leave their parts."""
        return self.out / "ranks"

    @property
    def checkpoints(self) -> Path:
        """Where checkpoints lie."""
        return self.out / "checkpoints"

    @property
    def log(self) -> Path:
        """Output of the launchers and ranks."""
        return self.out / "log.txt"


def threads_per_rank(spec: RunSpec, layout: Layout, num_cores: int) -> int:
    """Threads so that the ranks on one machine do not oversubscribe its cores (at least one).

    Over the loopback all nodes share this machine; over a real network a machine is one node.
    """
    shared = spec.world.network == "loopback"
    ranks_here = layout.num_processes if shared else layout.processes_per_node
    return max(1, num_cores // ranks_here)


def plan(spec: RunSpec, layout: Layout, paths: RunPaths, num_cores: int, port: int) -> Launch:
    """The commands of a run on this machine; `port` is free on the loopback."""
    threads = threads_per_rank(spec, layout, num_cores)
    if spec.world.network == "real" and spec.world.nodes > 1:
        reason = (
            f"needs {spec.world.nodes} machines (cluster.network real), this launcher starts "
            "every node here; run it on a cluster or set cluster.network to loopback"
        )
        return Launch((), {}, threads, reason)
    worker = worker_arguments(paths)
    commands = tuple(
        (
            sys.executable,
            "-m",
            "torch.distributed.run",
            f"--nnodes={spec.world.nodes}",
            f"--node-rank={node}",
            f"--nproc-per-node={layout.processes_per_node}",
            f"--master-addr={LOOPBACK}",
            f"--master-port={port}",
            "--max-restarts=0",
            *worker,
        )
        for node in range(spec.world.nodes)
    )
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "PYTHONPATH": os.pathsep.join(
            filter(None, (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")))
        ),
    }
    if spec.world.network == "loopback":
        environment |= {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
    return Launch(commands, environment, threads)


def worker_arguments(paths: RunPaths) -> tuple[str, ...]:
    """What comes after the launcher's own options, the same for torchrun and horovodrun."""
    return (
        "-m",
        "pipeline.training.worker",
        f"--spec={paths.spec}",
        f"--tokens={paths.tokens}",
        f"--out={paths.ranks}",
        f"--checkpoints={paths.checkpoints}",
    )


def free_port() -> int:
    """A TCP port that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])
