"""The ranks of a run on emulated nodes: processes forked each into the network of its node."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import signal
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from pipeline.emulation import links, pacing
from pipeline.emulation.cores import Shares
from pipeline.emulation.dilation import Dilation
from pipeline.emulation.nodes import Nodes
from pipeline.emulation.pacing import Pacer, speed_of
from pipeline.errors import LaunchError
from pipeline.files import write_text
from pipeline.machine.processes import die_with_parent, exit_status
from pipeline.resolved import ResolvedRun
from pipeline.study.spec import RunSpec
from pipeline.training import fence, worker

PORT = 29500
"""Meeting place of the ranks of a copy: every port of a new network is free."""

ENDLESS_STEPS = 10**9
"""Steps of a copy that fills the machine: it is busy until the measured copy has ended."""

GRACE_SECONDS = 10.0
POLL_SECONDS = 0.02


class Rank:
    """A forked process of one copy; `store` is the one that holds the copy's meeting place."""

    def __init__(self, copy: int, pid: int, *, store: bool = False) -> None:
        self.copy, self.pid, self.store = copy, pid, store
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
    dilation: Dilation,
    forward_seconds: float | None,
    args: Namespace,
) -> Iterator[list[Rank]]:
    """Fork the ranks of every copy of a run, each into the network of its node; kill what is left.

    Each copy has one process more, its meeting place. `forward_seconds` is what the yardstick says
    of a rank's forward pass, None without one.
    """
    layout = run.layout

    def meet(copy: int) -> int:
        """Hold the key-value store through which the ranks of a copy find one another."""
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        nodes.enter(copy, 0)
        store = TCPStore(links.address(copy, 0), PORT, is_master=True, wait_for_workers=False)
        signal.pause()
        del store
        return 0

    def train(copy: int, rank: int, own: Namespace) -> int:
        """Be a rank, as slow as its node is; its pacer is made within it."""
        node, local = divmod(rank, layout.processes_per_node)
        nodes.enter(copy, node)
        own.share = partial(shares.of, copy * nodes.count + node)
        speed = speed_of(node, run.spec.world, f"{run.spec.seed}/{run.spec.repeat}/{node}")
        own.pacer = partial(Pacer, dilation.factor, speed, forward_seconds)
        # What torchrun would set, and the dilated waits of Horovod's loop.
        variables = {
            "RANK": rank,
            "LOCAL_RANK": local,
            "WORLD_SIZE": layout.num_processes,
            "LOCAL_WORLD_SIZE": layout.processes_per_node,
            "GROUP_RANK": node,
            "MASTER_ADDR": links.address(copy, 0),
            "MASTER_PORT": PORT,
            "TORCHELASTIC_USE_AGENT_STORE": True,
            "TORCHELASTIC_RESTART_COUNT": 0,
            "GLOO_SOCKET_IFNAME": links.INTERFACE,
            pacing.VARIABLE: dilation.factor,
        }
        os.environ.update({name: str(value) for name, value in variables.items()})
        return worker.run(own)

    started: list[Rank] = []
    try:
        for copy in range(dilation.copies):
            own = _arguments(run.spec, args, copy)
            started.append(Rank(copy, fork(partial(meet, copy)), store=True))
            for rank in range(layout.num_processes):
                started.append(Rank(copy, fork(partial(train, copy, rank, own))))
        yield started
    finally:
        for one in started:
            one.kill()


def _arguments(spec: RunSpec, args: Namespace, copy: int) -> Namespace:
    """A rank's arguments; copies that fill the machine train on, in a folder of their own."""
    if copy == 0:
        return Namespace(**vars(args))
    folder = args.out / f"copy{copy}"
    shutil.rmtree(folder, ignore_errors=True)  # of a killed attempt
    folder.mkdir()
    work = replace(spec.workload, steps=ENDLESS_STEPS, checkpoint_every=0)
    write_text(folder / "spec.json", replace(spec, workload=work).to_json())
    write_text(folder / fence.FILE, args.launch)
    places = {"spec": folder / "spec.json", "out": folder, "checkpoints": folder / "checkpoints"}
    return Namespace(**(vars(args) | places | {"resume_from": 0}))


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


def follow(ranks: list[Rank]) -> int:
    """Wait for the measured copy: 0 when all of it ended well, 128 + n after a kill by signal n.

    Else 1. Raises RuntimeError where the measured copy ended well, but one that had to keep the
    machine busy ended before it.
    """
    measured = [rank for rank in ranks if rank.copy == 0 and not rank.store]
    others = [rank for rank in ranks if rank not in measured]
    while None in (codes := [rank.poll() for rank in measured]):
        if any(codes) or any(rank.poll() is not None for rank in others):
            # The others get a moment to say their own reason.
            deadline = time.monotonic() + GRACE_SECONDS
            while time.monotonic() < deadline and None in (rank.poll() for rank in measured):
                time.sleep(0.05)
            break
        time.sleep(POLL_SECONDS)
    if killed := [code for rank in ranks if (code := rank.poll()) is not None and code < 0]:
        # Ranks that lose a peer may abort, which is a signal too.
        return exit_status(-signal.SIGKILL if -signal.SIGKILL in killed else killed[0])
    if any(rank.poll() for rank in measured):
        return 1
    for rank in others:
        if (code := rank.poll()) is not None:
            raise RuntimeError(
                f"copy {rank.copy} of the nodes, which keeps the machine busy beside the measured "
                f"one, ended with exit code {code} before it; see log.txt"
            )
    return 0


def stay_with(parent: int) -> None:
    """End when `parent` ends; raises LaunchError where it already has."""
    die_with_parent()
    if os.getppid() != parent:
        raise LaunchError("the process that started this one has gone")
