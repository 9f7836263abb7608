"""What the nodes of a run really get, as its record holds it: shares, rates, and what was set."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from pipeline.emulation import links, probes
from pipeline.emulation.dilation import Dilation
from pipeline.emulation.nodes import Nodes
from pipeline.emulation.shares import Shares
from pipeline.errors import UnsupportedError
from pipeline.spec import LinkSpec

LEAST_RATE = 0.7
"""Of a link's rate: headers take 0.04, other work on the machine may take the rest; the record has
what was measured. Below, the rate is not reached."""

TRIALS = (1, 2, 4, 8)
"""Times that a probe of the rate is made as long, until the rate is reached: work that came by for
a moment weighs less in a longer one."""


def measure(
    link: LinkSpec, cores_per_node: int, nodes: Nodes, shares: Shares, dilation: Dilation
) -> dict[str, Any]:
    """Shares and rates as set and as measured, in units of the emulated cluster."""
    alone = nodes.count == 1
    return {
        "dilation": dilation.factor,
        "copies": dilation.copies,
        "cores_per_node": cores_per_node,
        "shares": shares.kind,
        "shares_reason": shares.reason,
        "measured_cores": _cores(cores_per_node, nodes, shares, dilation),
        "link": asdict(link),
        "measured_mbits": [] if alone else _rates(link, nodes, shares, dilation),
    }


def check_rates(measured: dict[str, Any]) -> None:
    """Raise UnsupportedError where this machine cannot carry what the links are set to."""
    rate, rates = measured["link"]["rate_mbits"], measured["measured_mbits"]
    if not rates or min(rates) >= LEAST_RATE * rate:
        return
    raise UnsupportedError(
        f"a link of {rate:g} Mbit/s cannot be reached here: with {len(rates)} nodes sending at "
        f"once {min(rates):.0f} Mbit/s were measured (time dilated by {measured['dilation']:g}); "
        "lower the rate in cluster.links or use more cores"
    )


def _cores(width: int, nodes: Nodes, shares: Shares, dilation: Dilation) -> list[float]:
    """Cores of each node of the measured copy, with `width` busy threads on every node of all."""
    threads = nodes.copies * nodes.count * width
    spun = probes.measure([probes.spin] * threads, lambda i: shares.of(i // width))
    return [
        sum(spun[node * width : (node + 1) * width]) * dilation.factor
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
        if min(rates) >= LEAST_RATE * link.rate_mbits:
            break
    return rates
