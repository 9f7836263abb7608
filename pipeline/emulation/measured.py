"""What the nodes of a run really get, as its record holds it: shares, rates, and what was set."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from pipeline.emulation import links, probes
from pipeline.emulation.cores import Shares
from pipeline.emulation.dilation import Dilation
from pipeline.emulation.nodes import Nodes
from pipeline.errors import UnsupportedError
from pipeline.machine import session
from pipeline.study.link import LinkSpec

LEAST_RATE = 0.7
"""Share of a link's rate that must be reached: other work may take the rest, and the record has it.
Below, the rate is not reached."""

LEAST_SHARE = 0.7
"""Share of a node's cores that it must get: with less the machine is busy with something else."""

PATIENCE_SECONDS, PAUSE_SECONDS = 60.0, 1.0
"""How long a busy machine is waited for, and the polling interval meanwhile."""

ATTEMPTS = 3
"""Looks at a rate that is not reached although the nodes had their cores before and after."""

TRIALS = (1, 2, 4, 8)
"""Times that a probe of the rate is made as long, until the rate is reached: work that came by for
a moment weighs less in a longer one."""


RATES_SECONDS = 600.0
"""How long rates that were reached stand for the same links, made anew, of a session's later runs.
"""


def measure(
    run_id: str,
    link: LinkSpec,
    cores_per_node: int,
    nodes: Nodes,
    shares: Shares,
    dilation: Dilation,
) -> dict[str, Any]:
    """Shares and rates as set and as measured, in units of the emulated cluster.

    While the nodes do not get their cores, something else works on the machine; that is waited for.
    Cores are measured before every run; rates again after `RATES_SECONDS`, and `rates_measured_by`
    names the run before which they were.
    """
    same = json.dumps(
        [link.to_dict(), nodes.count, cores_per_node, shares.places, asdict(dilation)]
    )
    before = session.recall(same, RATES_SECONDS) if nodes.count > 1 else None
    cores, rates = _when_quiet(
        lambda: _cores(cores_per_node, nodes, shares, dilation),
        lambda: (
            []
            if nodes.count == 1
            else before["rates"]
            if before
            else _rates(link, nodes, shares, dilation)
        ),
        LEAST_SHARE * cores_per_node,
        _least_rates(link, nodes.count),
    )
    if before is None and rates and _reached(rates, _least_rates(link, nodes.count)):
        session.keep(same, {"rates": rates, "run": run_id})
    return {
        "dilation": dilation.factor,
        "copies": dilation.copies,
        "cores_per_node": cores_per_node,
        "shares": shares.kind,
        "measured_cores": cores,
        "link": link.to_dict(),
        "mtu": links.MTU,
        "tcp": nodes.tcp(),
        "measured_mbits": rates,
        **({"rates_measured_by": before["run"]} if before else {}),
    }


def _when_quiet(
    cores: Callable[[], list[float]],
    rates: Callable[[], list[float]],
    least_cores: float,
    least_rates: Sequence[float],
) -> tuple[list[float], list[float]]:
    """Both figures of a moment in which the nodes had their cores, or the last ones.

    A rate that is often not reached while they have them is one that cannot be reached here.
    """
    deadline, attempts = time.monotonic() + PATIENCE_SECONDS, 0
    while True:
        had, late = cores(), time.monotonic() > deadline
        if min(had) >= least_cores or late:
            reached = rates()
            if late or _reached(reached, least_rates):
                return had, reached
            attempts += min(cores()) >= least_cores
            if attempts == ATTEMPTS:
                return had, reached
        time.sleep(PAUSE_SECONDS)


def check_cores(measured: dict[str, Any]) -> None:
    """Raise UnsupportedError where a node did not get its cores: its times would be others'."""
    wanted, had = measured["cores_per_node"], min(measured["measured_cores"])
    if had >= LEAST_SHARE * wanted:
        return
    raise UnsupportedError(
        f"a node of {wanted} cores got {had:.2f} of them for {PATIENCE_SECONDS:.0f} s (time "
        f"dilated by {measured['dilation']:g}): other work or a quota has the rest; "
        "end that work or lower cluster.nodes, then remove run.json"
    )


def check_rates(measured: dict[str, Any]) -> None:
    """Raise UnsupportedError where this machine cannot carry what the links are set to."""
    link, rates = LinkSpec(**measured["link"]), measured["measured_mbits"]
    if not rates or _reached(rates, _least_rates(link, len(rates))):
        return
    expected = links.reachable_mbits(link, len(rates))
    rate, want = min(zip(rates, expected, strict=True), key=lambda pair: pair[0] / pair[1])
    raise UnsupportedError(
        f"a link of {want:g} Mbit/s cannot be reached here: with {len(rates)} nodes sending at "
        f"once {rate:.0f} Mbit/s were measured (time dilated by {measured['dilation']:g}); "
        "lower the rate in cluster.links or use more cores"
    )


def _least_rates(link: LinkSpec, count: int) -> list[float]:
    """Mbit/s into each node below which its link is not what it was set to."""
    return [LEAST_RATE * mbits for mbits in links.reachable_mbits(link, count)]


def _reached(rates: Sequence[float], least: Sequence[float]) -> bool:
    """Whether every node got its rate; one node has none."""
    return not rates or all(rate >= low for rate, low in zip(rates, least, strict=True))


def _cores(width: int, nodes: Nodes, shares: Shares, dilation: Dilation) -> list[float]:
    """Cores of each node of the measured copy, all nodes of all copies having `width` busy threads.

    At most all that it counts as having: headroom is not its own.
    """
    threads = nodes.copies * nodes.count * width
    spun = probes.measure([probes.spin] * threads, lambda i: shares.of(i // width))
    return [
        min(width, sum(spun[node * width : (node + 1) * width]) * dilation.factor)
        for node in range(nodes.count)
    ]


def _rates(link: LinkSpec, nodes: Nodes, shares: Shares, dilation: Dilation) -> list[float]:
    """Mbit/s into each node of the measured copy, while every node of all copies sends."""
    places = [(copy, node) for copy in range(nodes.copies) for node in range(nodes.count)]

    @contextmanager
    def inside(place: int) -> Iterator[None]:
        nodes.enter(*places[place])
        with shares.of(place):
            yield

    rates: list[float] = []
    for trial in TRIALS:
        ring = [
            probes.ring(
                links.address(copy, node),
                links.address(copy, (node + 1) % nodes.count),
                probes.SEND_SECONDS * trial,
            )
            for copy, node in places
        ]
        found = probes.measure(ring, inside)[: nodes.count]
        rates = [bits * dilation.factor / 1e6 for bits in found]
        if _reached(rates, _least_rates(link, nodes.count)):
            break
    return rates
