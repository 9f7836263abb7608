"""Shares and rates that the nodes of a run really get, and their settings, for its record."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

import psutil

from pipeline.emulation import links, probes
from pipeline.emulation.nodes import Nodes
from pipeline.errors import DisturbedError, UnsupportedError
from pipeline.machine import session
from pipeline.study.link import LinkSpec
from pipeline.study.spec import RunSpec

LEAST_RATE = 0.7  # share of a link's rate that must be reached; other work may take the rest
LEAST_SHARE, REAL_TIME_SHARE = 0.7, 0.9
"""Share of its cores that a node must get, else something else keeps the machine busy. In real time
there is no headroom: every other program makes the steps longer."""

PATIENCE_SECONDS, PAUSE_SECONDS = 60.0, 1.0
"""Seconds to wait for a busy machine, and the polling interval meanwhile."""

IMPATIENCE_SECONDS, BUSY_SECONDS = 3.0, 600.0
"""Seconds to wait where the run before waited in vain, at most so long ago: a study of
hundreds of runs does not wait a minute for each, since all are tried again at its end."""

ATTEMPTS = 3
"""Looks at a rate that is not reached although the nodes had their cores before and after."""

TRIALS = (1, 2, 4, 8)
"""Lengths of a probe, until the rate is reached: a moment's disturbance weighs less in a longer."""

RATES_SECONDS = 600.0
"""Seconds for which a session's later runs may reuse rates that the same links reached."""

LEAST_CORES, MOST_NAMED = 0.2, 3
"""Cores of another program that is worth naming, and how many are named."""


def measure(spec: RunSpec, nodes: Nodes, tell: Callable[[str], None]) -> dict[str, Any]:
    """Shares and rates as set and as measured, in units of the emulated cluster.

    While the nodes do not get their cores, it waits for whatever else works on the machine, and
    `tell` gets a line on it; `disturbed_by` is that line where this did not end in time. Cores are
    measured before every run, rates once in `RATES_SECONDS`: before the run `rates_measured_by`.
    """
    link, width = spec.world.link, spec.world.cores_per_node
    assert link is not None and width is not None
    same = json.dumps([link.to_dict(), nodes.count, width, nodes.places, nodes.dilation])
    before = session.recall(same, RATES_SECONDS)
    # Nodes that are not dilated run in real time, whether or not their study asks for it.
    least_share = (REAL_TIME_SHARE if nodes.dilation == 1 else LEAST_SHARE) * width
    in_vain = session.recall("busy", BUSY_SECONDS)
    patience = IMPATIENCE_SECONDS if in_vain else min(PATIENCE_SECONDS, spec.timeout_seconds / 2)
    deadline, attempts, disturber = time.monotonic() + patience, 0, ""
    while True:
        # Cores first: without them a rate says nothing of the links.
        cores, reached = _cores(width, nodes), list[float]()
        if min(cores) >= least_share:
            reached = before["rates"] if before else _rates(link, nodes)
            is_reached = _reached(reached, link)
            if not is_reached:
                # Often not reached while they have their cores, it cannot be reached here.
                attempts += min(_cores(width, nodes)) >= least_share
            if is_reached or attempts == ATTEMPTS:
                if disturber:
                    tell("the machine is quiet again")
                disturber = ""
                break
        had = zip(nodes.places, cores, strict=True)
        late = [core for place, share in had if share < least_share for core in place]
        first, disturber = not disturber, busy_programs(PAUSE_SECONDS, late)
        if first:
            tell(f"waits: {disturber}")
        if time.monotonic() > deadline:
            reached = []
            break
    # Later runs of the session wait the less for a machine that stayed busy in this one.
    session.keep("busy", bool(disturber))
    latency, used = before and before["latency"], [core for place in nodes.places for core in place]
    if before is None and reached and _reached(reached, link):
        latency = _latency(nodes)
        session.keep(same, {"rates": reached, "latency": latency, "run": spec.run_id})
    return {
        "dilation": nodes.dilation,
        "cores_per_node": width,
        "shares": "own" if len(used) == len({*used}) else "paced",
        "measured_cores": cores,
        "link": link.to_dict(),
        "mtu": links.MTU,
        "tcp": nodes.tcp(),
        "measured_mbits": reached,
        **({"latency_us": latency} if latency else {}),
        **({"rates_measured_by": before["run"]} if before else {}),
        **({"disturbed_by": disturber} if disturber else {}),
    }


def check(measured: dict[str, Any]) -> None:
    """Raise DisturbedError where a node did not get its cores: its times would be others'.

    UnsupportedError where this machine cannot carry what the links are set to.
    """
    if "disturbed_by" in measured:
        wanted, had = measured["cores_per_node"], min(measured["measured_cores"])
        raise DisturbedError(
            f"{measured['disturbed_by']}; a node of {wanted} cores got {had:.2f} of them (time "
            f"dilated by {measured['dilation']:g}); `make paper` tries this run again"
        )
    link, rates = LinkSpec(**measured["link"]), measured["measured_mbits"]
    if not rates or _reached(rates, link):
        return
    expected = links.reachable_mbits(link, len(rates))
    rate, want = min(zip(rates, expected, strict=True), key=lambda pair: pair[0] / pair[1])
    raise UnsupportedError(
        f"a link of {want:g} Mbit/s cannot be reached here: with {len(rates)} nodes sending at "
        f"once {rate:.0f} Mbit/s were measured (time dilated by {measured['dilation']:g}); "
        "lower the rate in cluster.links or use more cores"
    )


def _reached(rates: Sequence[float], link: LinkSpec) -> bool:
    """True where every node got its rate, in Mbit/s; of one node none is measured."""
    expected = links.reachable_mbits(link, len(rates))
    return all(rate >= LEAST_RATE * mbits for rate, mbits in zip(rates, expected, strict=True))


def _cores(width: int, nodes: Nodes) -> list[float]:
    """Cores of each node with `width` busy threads, at most these: headroom is not its own."""
    spinning = [probes.spin] * nodes.count * width
    spun = probes.measure(spinning, lambda thread: nodes.on_cores(thread // width))
    return [
        min(width, sum(spun[node * width : (node + 1) * width]) * nodes.dilation)
        for node in range(nodes.count)
    ]


def _latency(nodes: Nodes) -> float:
    """Microseconds of the cluster for one byte from a node to the next, nothing else on the way.

    The kernel's work and wake-ups are not dilated, so the larger the factor, the less it is.
    """
    address = links.address(0)
    pair = [probes.echo(address), probes.ping(address)]
    _, seconds = probes.measure(pair, nodes.within)
    return round(seconds / nodes.dilation * 1e6, 2)


def _rates(link: LinkSpec, nodes: Nodes) -> list[float]:
    """Mbit/s into each node while all of them send, each to the next; of one node none."""
    rates, addresses = list[float](), [links.address(node) for node in range(nodes.count)]
    following = [*addresses[1:], addresses[0]]
    for trial in TRIALS if nodes.count > 1 else ():
        ways = zip(addresses, following, strict=True)
        ring = [probes.ring(*way, probes.SEND_SECONDS * trial) for way in ways]
        bits = probes.measure(ring, nodes.within)
        rates = [rate * nodes.dilation / 1e6 for rate in bits]
        if _reached(rates, link):
            break
    return rates


def busy_programs(seconds: float, cores: Iterable[int]) -> str:
    """`another program uses core 1: python (process 4242)`, found in so many seconds.

    This process and its children are left out. `cores`, those that are known to be busy, are named
    where /proc shows no program (another guest's, for example) or one uses more than its own core.
    """
    _used()
    time.sleep(seconds)
    this = psutil.Process()
    ours = {this.pid, *(child.pid for child in this.children(recursive=True))}
    busy: list[tuple[float, int, str]] = []  # used cores, the last core, the name to show
    for process, used in _used().items():
        if used >= LEAST_CORES and process.pid not in ours:
            with suppress(psutil.Error):
                name = "".join(c if c.isprintable() else "?" for c in process.name())
                busy.append((used, process.cpu_num(), f"{name} (process {process.pid})"))
    busy.sort(reverse=True)
    where = sorted({core for _, core, _ in busy})
    if not busy or busy[0][0] > 1 + LEAST_CORES:
        where = sorted({*cores, *where})
    which = f"core {where[0]}" if len(where) == 1 else f"cores {', '.join(map(str, where))}"
    subject = f"{len(busy)} other programs use" if len(busy) > 1 else "another program uses"
    named = ", ".join(name for *_, name in busy[:MOST_NAMED]) or "none that /proc shows"
    return f"{subject} {which}: {named}{', ...' if len(busy) > MOST_NAMED else ''}"


def _used() -> dict[psutil.Process, float]:
    """Cores that each process has used since the last call, 0 for one that is new."""
    used = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            used[process] = process.cpu_percent() / 100
    return used
