"""Build the emulated nodes of a run, measure what they get, fork their ranks and follow them.

Started by `pipeline.launch.preloaded` with the arguments of a rank.

The heavy packages are imported once, before the ranks are forked, each in the network and on the
cores of its node, with the variables that torchrun would set. What was measured is left as
`emulation.json` beside the ranks' own files.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial

from pipeline.emulation import NOTE, REPORT, links, pacing
from pipeline.emulation.dilation import awake, dilate, places
from pipeline.emulation.measured import check, measure
from pipeline.emulation.nodes import Nodes
from pipeline.emulation.pacing import Pacer, slowness_of
from pipeline.files import write_text
from pipeline.launch.emulated import yardstick
from pipeline.machine import limits
from pipeline.machine.processes import Child, die_with_parent, exit_status, stay_with
from pipeline.resolved import ResolvedRun, resolve
from pipeline.training import worker

PORT = 29500  # where ranks meet: every port of a new network is free
GRACE_SECONDS, POLL_SECONDS = 10.0, 0.02


def run_here() -> int:
    """Build, measure, train; an error is left for the stage as a rank leaves its own."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    args = worker.parse(sys.argv[1:])
    parent = os.getppid()
    die_with_parent()
    try:
        run = resolve(worker.read_spec(args))
        spec, world, link = run.spec, run.spec.world, run.link
        assert link is not None and world.cores_per_node is not None  # of an emulated network
        run.strategy.check()  # nothing waits for a quiet machine to learn of a missing package
        cores = limits.usable_cores()
        forward_seconds = yardstick.forward_seconds(args.yardstick, run)
        dilation = dilate(world, len(cores))
        nodes = Nodes(places(world.nodes, world.cores_per_node, cores), link, dilation)
        stay_with(parent)  # again: entering a user namespace has cleared it
        with awake(cores):
            measured = measure(spec, nodes, partial(write_text, args.out / NOTE))
            about = measured | {"cores": len(cores)}
            if forward_seconds is not None:
                about["forward_seconds"] = forward_seconds
            write_text(args.out / REPORT, json.dumps(about))
            check(measured)
            # What every rank needs is imported once, so that a fork has it; it starts no thread.
            worker.import_heavy([spec.model])
            for module in run.strategy.modules:
                importlib.import_module(module)
            return _train(run, nodes, forward_seconds, args)
    except Exception as error:
        worker.leave_error(error, args, rank=0)
        raise


def _train(run: ResolvedRun, nodes: Nodes, forward_seconds: float | None, args: Namespace) -> int:
    """Fork a run's meeting place and its ranks, each in its node's network, and follow them."""
    layout, link = run.layout, run.link
    assert link is not None

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
        slowness = slowness_of(node, nodes.count, link, f"{run.spec.seed}/{run.spec.repeat}/{node}")
        # Timed runs stay where they are; they meet a profiled one in `profile_slowdown` alone.
        move = partial(nodes.move, node) if run.spec.profile else None
        pacer = partial(Pacer, nodes.dilation, slowness, forward_seconds, move)
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

    works: list[Callable[[], int]] = [meet]
    works += [partial(train, rank) for rank in range(layout.num_processes)]
    with ExitStack() as stack:
        return follow([stack.enter_context(Child(work)) for work in works])


def follow(started: Sequence[Child]) -> int:
    """Wait for the ranks after their meeting place: 0, 128 + n after a kill by signal n, else 1."""
    store, *ranks = started
    while None in (codes := [rank.poll() for rank in ranks]):
        if any(codes) or store.poll() is not None:
            # The others get a moment to say their own reason.
            deadline = time.monotonic() + GRACE_SECONDS
            while time.monotonic() < deadline and None in (rank.poll() for rank in ranks):
                time.sleep(POLL_SECONDS)
            break
        time.sleep(POLL_SECONDS)
    codes = [rank.poll() for rank in (*ranks, store)]
    if killed := [code for code in codes if code is not None and code < 0]:
        # Ranks that lose a peer may abort, which is a signal too.
        return exit_status(-signal.SIGKILL if -signal.SIGKILL in killed else killed[0])
    return int(codes[:-1] != [0] * len(ranks))


if __name__ == "__main__":
    sys.exit(run_here())
