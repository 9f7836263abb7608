"""A run on emulated nodes: `python -m pipeline.training.emulated` with the worker's own arguments.

It builds the nodes (`pipeline.emulation`), measures what they get, imports the heavy packages once
and forks the ranks, each in the network and the share of its node, with the variables that torchrun
would set. What was measured is left as `emulation.json` beside the ranks' own files.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, NoReturn

from pipeline import strategies
from pipeline.emulation import REPORT, links, probes
from pipeline.emulation.dilation import Dilation, dilate, places
from pipeline.emulation.nodes import Nodes, enter_private_network
from pipeline.emulation.shares import Shares, make_shares
from pipeline.errors import LaunchError, UnsupportedError
from pipeline.files import write_text
from pipeline.spec import LinkSpec, RunSpec
from pipeline.strategies.base import Layout
from pipeline.training import fence, preloaded, worker
from pipeline.training.processes import die_with_parent

PORT = 29500
"""Where the ranks of a copy meet: every port of a new network is free."""

LEAST_RATE = 0.7
"""Of a link's rate: headers take 0.04, other work on the machine may take the rest; the record has
what was measured. Below, the rate is not reached."""

FILLER_STEPS = 4
"""Times the steps of the measured copy: the others must still be busy at its end."""

GRACE_SECONDS = 10.0


def main() -> int:
    """Have a preloaded process do it, where there is one, else do it here."""
    done = preloaded.ask(sys.argv[1:])
    return run_here() if done is None else done


def run_here() -> int:
    """Build, measure, train; an error is left for the stage as a rank leaves its own."""
    signal.signal(signal.SIGTERM, _end)
    args = worker.parse(sys.argv[1:])
    parent = os.getppid()
    die_with_parent()
    try:
        spec = worker.read_spec(args)
        return _run(spec, args, parent)
    except Exception as error:
        worker.leave_error(error, args, rank=0)
        raise


def _run(spec: RunSpec, args: Namespace, parent: int) -> int:
    world, link = spec.world, spec.world.link
    if link is None or world.cores_per_node is None:
        raise LaunchError(f"{spec.run_id}: an emulated network needs a link and cores_per_node")
    cores = sorted(os.sched_getaffinity(0))
    dilation = dilate(world.nodes, world.cores_per_node, len(cores))
    enter_private_network()
    _stay_with(parent)  # a user namespace forgets it
    nodes = Nodes(world.nodes, dilation.copies, link, dilation.factor)
    count = world.nodes * dilation.copies
    shares = make_shares(dilation.share, places(count, world.cores_per_node, cores))
    ranks: list[Rank] = []
    try:
        measured = _measure(spec, nodes, shares, dilation)
        write_text(args.out / REPORT, json.dumps(measured | {"cores": len(cores)}))
        _check_rate(spec, measured)
        _import_heavy(spec)
        layout = strategies.load(spec.strategy, spec.options).layout(world)
        ranks = Cluster(spec, layout, nodes, shares, dilation).start(args)
        return _follow(ranks)
    finally:
        for rank in ranks:
            _kill(rank)
        shares.close()


def _stay_with(parent: int) -> None:
    die_with_parent()
    if os.getppid() != parent:
        raise LaunchError("the process that started this one has gone")


def _measure(spec: RunSpec, nodes: Nodes, shares: Shares, dilation: Dilation) -> dict[str, Any]:
    """Shares and rates as set and as measured, in units of the emulated cluster."""
    world, link, factor = spec.world, spec.world.link, dilation.factor
    assert link is not None and world.cores_per_node is not None
    places = [(copy, node) for copy in range(dilation.copies) for node in range(world.nodes)]
    width = world.cores_per_node
    spun = probes.measure([probes.spin] * (len(places) * width), lambda i: shares.of(i // width))
    each = [sum(spun[i * width : (i + 1) * width]) * factor for i in range(world.nodes)]
    rates = _measure_rates(link, nodes, shares, dilation) if world.nodes > 1 else []
    return {
        "dilation": factor,
        "copies": dilation.copies,
        "cores_per_node": width,
        "shares": shares.kind,
        "shares_reason": shares.reason,
        "measured_cores": each,
        "link": asdict(link),
        "measured_mbits": rates,
    }


def _measure_rates(link: LinkSpec, nodes: Nodes, shares: Shares, dilation: Dilation) -> list[float]:
    """Mbit/s into each node of the measured copy; taken again, longer, where they are too low."""
    places = [(copy, node) for copy in range(nodes.copies) for node in range(nodes.count)]

    @contextmanager
    def node(place: int) -> Iterator[None]:
        nodes.enter(*places[place])
        with shares.of(place):
            yield

    rates: list[float] = []
    for factor in (1, 2, 4, 8):
        ring = [
            probes.ring(
                links.address(c, n),
                links.address(c, (n + 1) % nodes.count),
                probes.SEND_SECONDS * factor,
            )
            for c, n in places
        ]
        found = probes.measure(ring, node)[: nodes.count]
        rates = [bits * dilation.factor / 1e6 for bits in found]
        if min(rates) >= LEAST_RATE * link.rate_mbits:
            break
    return rates


def _check_rate(spec: RunSpec, measured: Mapping[str, Any]) -> None:
    """Raise UnsupportedError where this machine cannot carry what the links are set to."""
    link, rates = spec.world.link, measured["measured_mbits"]
    if link is None or not rates or min(rates) >= LEAST_RATE * link.rate_mbits:
        return
    raise UnsupportedError(
        f"a link of {link.rate_mbits:g} Mbit/s cannot be reached here: with {spec.world.nodes} "
        f"nodes sending at once {min(rates):.0f} Mbit/s were measured (time dilated by "
        f"{measured['dilation']:g}); lower the rate in cluster.links or use more cores"
    )


def _import_heavy(spec: RunSpec) -> None:
    """Import once what every rank needs, so that a fork has it; no thread may be started by it."""
    strategy = strategies.load(spec.strategy, spec.options)
    strategy.check()
    worker.import_heavy()
    for package in strategy.requires:
        importlib.import_module(f"{package}.torch" if package == "horovod" else package)


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


@dataclass(frozen=True)
class Cluster:
    """The nodes of all copies, as the ranks of one run see them."""

    spec: RunSpec
    layout: Layout
    nodes: Nodes
    shares: Shares
    dilation: Dilation

    def start(self, args: Namespace) -> list[Rank]:
        """Fork a meeting place and the ranks of every copy."""
        started: list[Rank] = []
        for copy in range(self.dilation.copies):
            own = _arguments(self.spec, args, copy)
            own.dilation = self.dilation.factor
            started.append(Rank(copy, _fork(partial(self._meet, copy)), store=True))
            for rank in range(self.layout.num_processes):
                started.append(Rank(copy, _fork(partial(self._train, copy, rank, own))))
        return started

    def _train(self, copy: int, rank: int, args: Namespace) -> int:
        node = rank // self.layout.processes_per_node
        self.nodes.enter(copy, node)
        args.share = partial(self.shares.of, copy * self.nodes.count + node)
        os.environ.update(self.variables(copy, rank))
        return worker.run(args)

    def _meet(self, copy: int) -> int:
        """Hold the key-value store through which the ranks of a copy find one another."""
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        self.nodes.enter(copy, 0)
        store = TCPStore(links.address(copy, 0), PORT, is_master=True, wait_for_workers=False)
        signal.pause()
        del store
        return 0

    def variables(self, copy: int, rank: int) -> dict[str, str]:
        """What torchrun sets, and the waits of Horovod's loop, which are dilated too."""
        node, local = divmod(rank, self.layout.processes_per_node)
        found = {
            "RANK": rank,
            "LOCAL_RANK": local,
            "WORLD_SIZE": self.layout.num_processes,
            "LOCAL_WORLD_SIZE": self.layout.processes_per_node,
            "GROUP_RANK": node,
            "MASTER_ADDR": links.address(copy, 0),
            "MASTER_PORT": PORT,
            "TORCHELASTIC_USE_AGENT_STORE": True,
            "TORCHELASTIC_RESTART_COUNT": 0,
            "GLOO_SOCKET_IFNAME": links.INTERFACE,
            "SAMESTEP_DILATION": self.dilation.factor,
        }
        return {name: str(value) for name, value in found.items()}


def _arguments(spec: RunSpec, args: Namespace, copy: int) -> Namespace:
    """A rank's arguments; copies that fill the machine train longer, in a folder of their own."""
    if copy == 0:
        return Namespace(**vars(args))
    folder = args.out / f"copy{copy}"
    folder.mkdir()
    work = replace(spec.workload, steps=spec.workload.steps * FILLER_STEPS, checkpoint_every=0)
    write_text(folder / "spec.json", replace(spec, workload=work).to_json())
    write_text(folder / fence.FILE, args.launch)
    own = {"spec": folder / "spec.json", "out": folder, "checkpoints": folder / "checkpoints"}
    return Namespace(**(vars(args) | own))


def _fork(work: Callable[[], int]) -> int:
    """A child that does `work` and ends with its result, never going on in the caller's code."""
    parent = os.getpid()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        _stay_with(parent)
        code = work()
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        _leave(code)


def _leave(code: int) -> NoReturn:
    import atexit

    # Horovod shuts down there; os._exit alone would skip it and its peers would see an abort.
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _follow(ranks: list[Rank]) -> int:
    """Wait for the measured copy; 0 when all of it ended well while the others were busy."""
    measured = [rank for rank in ranks if rank.copy == 0 and not rank.store]
    others = [rank for rank in ranks if rank not in measured]
    while None in (codes := [rank.poll() for rank in measured]):
        if any(codes) or any(rank.poll() is not None for rank in others):
            _wait(measured)
            break
        time.sleep(0.02)
    early = [rank.copy for rank in others if rank.poll() is not None]
    if early:
        print(f"error: copy {early[0]}, which fills the machine, ended early", file=sys.stderr)
    return int(any(rank.poll() != 0 for rank in measured) or bool(early))


def _wait(ranks: list[Rank]) -> None:
    """Give the others a moment to say their own reason."""
    deadline = time.monotonic() + GRACE_SECONDS
    while time.monotonic() < deadline and any(rank.poll() is None for rank in ranks):
        time.sleep(0.05)


def _kill(rank: Rank) -> None:
    if rank.poll() is None:
        os.kill(rank.pid, signal.SIGKILL)
        os.waitpid(rank.pid, 0)


def _end(signum: int, frame: object) -> NoReturn:
    sys.exit(128 + signum)


if __name__ == "__main__":
    sys.exit(main())
