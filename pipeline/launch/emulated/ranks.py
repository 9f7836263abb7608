"""The ranks of a run on emulated nodes: processes forked each into the network of its node."""

from __future__ import annotations

import atexit
import json
import os
import signal
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from pipeline.emulation import links, pacing
from pipeline.emulation.cores import Shares
from pipeline.emulation.nodes import Nodes
from pipeline.emulation.pacing import Pacer, speed_of
from pipeline.errors import LaunchError
from pipeline.machine.processes import die_with_parent, exit_status
from pipeline.resolved import ResolvedRun
from pipeline.training import worker

PORT = 29500
"""Meeting place of the ranks: every port of a new network is free."""

GRACE_SECONDS = 10.0
POLL_SECONDS = 0.02


class Child:
    """A forked process."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.code: int | None = None

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
        return self.code

    def kill(self) -> None:
        """End it at once where it still runs."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)


@contextmanager
def running(
    run: ResolvedRun,
    nodes: Nodes,
    shares: Shares,
    dilation: float,
    forward_seconds: float | None,
    args: Namespace,
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
        pacer = partial(Pacer, dilation, speed, forward_seconds)
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
            pacing.VARIABLE: dilation,
        }
        os.environ.update({name: str(value) for name, value in variables.items()})
        return worker.run(args, run, pacer, partial(shares.of, node))

    started: list[Child] = []
    works: list[Callable[[], int]] = [meet]
    works += [partial(train, rank) for rank in range(layout.num_processes)]
    try:
        for work in works:
            started.append(Child(fork(work)))
        yield started
    finally:
        for one in started:
            one.kill()


def fork(work: Callable[[], int]) -> int:
    """A child that does `work` and ends with its result or with this process, never beyond it."""
    parent = os.getpid()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        stay_with(parent)
        code = work()
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        # Horovod shuts down there; os._exit alone would skip it and its peers would see an abort.
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def start(work: Callable[[], Any], place: Sequence[int]) -> tuple[int, int]:
    """A child on these cores that does `work`: its id, and where its result comes."""
    reader, writer = os.pipe()

    def child() -> int:
        os.close(reader)
        os.sched_setaffinity(0, place)
        with os.fdopen(writer, "w", encoding="utf-8") as stream:
            json.dump(work(), stream)
        return 0

    pid = fork(child)
    os.close(writer)
    return pid, reader


def result_of(pid: int, reader: int) -> Any:
    """Result of a child; raises LaunchError where it failed."""
    with os.fdopen(reader, encoding="utf-8") as stream:
        text = stream.read()
    if code := os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]):
        raise LaunchError(f"a measuring process ended with exit code {code}; see above")
    return json.loads(text)


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


def stay_with(parent: int) -> None:
    """End when `parent` ends; raises LaunchError where it already has."""
    die_with_parent()
    if os.getppid() != parent:
        raise LaunchError("the process that started this one has gone")
