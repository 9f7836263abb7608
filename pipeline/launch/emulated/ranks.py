"""The ranks of a run on emulated nodes: processes forked each into the network of its node."""

from __future__ import annotations

import os
import signal
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from pipeline.emulation import links, pacing
from pipeline.emulation.nodes import Nodes
from pipeline.emulation.pacing import Pacer, speed_of
from pipeline.machine.forks import Child
from pipeline.machine.processes import exit_status
from pipeline.resolved import ResolvedRun
from pipeline.training import worker

PORT = 29500
"""Meeting place of the ranks: every port of a new network is free."""

GRACE_SECONDS = 10.0
POLL_SECONDS = 0.02


@contextmanager
def running(
    run: ResolvedRun, nodes: Nodes, forward_seconds: float | None, args: Namespace
) -> Iterator[list[Child]]:
    """Fork the ranks of a run, each into the network of its node; kill what is left.

    The first of the processes is not a rank but their meeting place. `forward_seconds` is what the
    yardstick says of a rank's forward pass, None without one.
    """
    layout = run.layout

    def meet() -> int:
        """Hold the key-value store through which the ranks find one another."""
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        nodes.enter(0)
        store = TCPStore(links.address(0), PORT, is_master=True, wait_for_workers=False)
        signal.pause()
        del store
        return 0

    def train(rank: int) -> int:
        """Be a rank, as slow as its node is; its pacer is made within it."""
        node, local = divmod(rank, layout.processes_per_node)
        nodes.enter(node)
        speed = speed_of(node, run.spec.world, f"{run.spec.seed}/{run.spec.repeat}/{node}")
        pacer = partial(Pacer, nodes.dilation, speed, forward_seconds)
        # What torchrun would set, and the dilated waits of Horovod's loop.
        variables = {
            "RANK": rank,
            "LOCAL_RANK": local,
            "WORLD_SIZE": layout.num_processes,
            "LOCAL_WORLD_SIZE": layout.processes_per_node,
            "GROUP_RANK": node,
            "MASTER_ADDR": links.address(0),
            "MASTER_PORT": PORT,
            "TORCHELASTIC_USE_AGENT_STORE": True,
            "TORCHELASTIC_RESTART_COUNT": 0,
            "GLOO_SOCKET_IFNAME": links.INTERFACE,
            pacing.VARIABLE: nodes.dilation,
        }
        os.environ.update({name: str(value) for name, value in variables.items()})
        return worker.run(args, run, pacer, partial(nodes.on_cores, node))

    started = list[Child]()
    try:
        started.append(Child(meet))
        for rank in range(layout.num_processes):
            started.append(Child(partial(train, rank)))
        yield started
    finally:
        for one in started:
            one.kill()


def follow(started: Sequence[Child]) -> int:
    """Wait for the ranks, which come after their meeting place, and return an exit status.

    It is 0 where all of them ended well, 128 + n after a kill by signal n, else 1.
    """
    store, *ranks = started
    while None in (codes := [rank.poll() for rank in ranks]):
        if any(codes) or store.poll() is not None:
            # The others get a moment to say their own reason.
            deadline = time.monotonic() + GRACE_SECONDS
            while time.monotonic() < deadline and None in (rank.poll() for rank in ranks):
                time.sleep(0.05)
            break
        time.sleep(POLL_SECONDS)
    codes = [rank.poll() for rank in (*ranks, store)]
    if killed := [code for code in codes if code is not None and code < 0]:
        # Ranks that lose a peer may abort, which is a signal too.
        return exit_status(-signal.SIGKILL if -signal.SIGKILL in killed else killed[0])
    return int(codes[:-1] != [0] * len(ranks))
