"""Questions of tests to the kernel, in a process whose network is its own: JSON.

python -m tests.system.in_nodes rates LINK NODE... | timers FACTOR | stall | delay
"""

import json
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipeline.emulation import links, pacing, probes, tcp
from pipeline.emulation.nodes import WITH_DELAY, Nodes, why_not
from pipeline.study.link import LinkSpec

PORT = 7000
SECONDS = 0.8
DELAY_US = 200_000
RTO_PLACE = 8
"""Of the time-out in microseconds, in `struct tcp_info`."""


def rates(link: str, *order: str) -> list[float]:
    """Mbit/s into each node, by number, while each of `order` sends to the one after it."""
    ring = [int(node) for node in order]
    following = dict(zip(ring, ring[1:] + ring[:1], strict=True))
    nodes = Nodes([[0]] * len(ring), LinkSpec(**json.loads(link)))
    sending = [
        probes.ring(links.address(node), links.address(following[node]), SECONDS)
        for node in range(nodes.count)
    ]

    @contextmanager
    def inside(node: int) -> Iterator[None]:
        nodes.enter(node)
        yield

    return [bits / 1e6 for bits in probes.measure(sending, inside)]


def timers(factor: str) -> dict[str, Any]:
    """What a connection between two nodes has, one within a node, and what is recorded."""
    nodes = Nodes([[0]] * 2, LinkSpec("1gbit", 1000), float(factor))
    os.environ[pacing.VARIABLE] = "1"
    with nodes.inside(1):
        server = socket.create_server((links.address(1), PORT))
        within = _connection(server)
    with nodes.inside(0):
        before = tcp.counters()
        between = _connection(server)
        counted = tcp.since(before)
        ipv6 = Path("/proc/thread-self/net/if_inet6")
        addresses = ipv6.read_text(encoding="ascii") if ipv6.is_file() else ""
    return {
        "between": between,
        "within": within,
        "held": nodes.tcp(),
        "counted": counted,
        "ipv6": addresses,
    }


def stall() -> list[dict[str, int] | None]:
    """What each of two nodes counts while the cable of the second is pulled for half a second."""
    nodes = Nodes([[0]] * 2, LinkSpec("1gbit", 1000))
    os.environ[pacing.VARIABLE] = "1"
    with nodes.inside(1):
        server = socket.create_server((links.address(1), PORT))
    with nodes.inside(0):
        one = socket.create_connection((links.address(1), PORT), timeout=10)
    other, _ = server.accept()
    before = []
    for node in (0, 1):
        with nodes.inside(node):
            before.append(tcp.counters())
    port = links.port(1)
    subprocess.run(["ip", "link", "set", port, "down"], check=True)
    one.sendall(b"x" * 1000)
    time.sleep(0.5)
    subprocess.run(["ip", "link", "set", port, "up"], check=True)
    other.recv(1000)
    counted = []
    for node in (0, 1):
        with nodes.inside(node):
            counted.append(tcp.since(before[node]))
    return counted


def delay() -> dict[str, Any]:
    """Seconds of a message there and back again between two nodes over a link with a delay."""
    if (reason := why_not(WITH_DELAY)) is not None:
        return {"reason": reason}
    nodes = Nodes([[0]] * 2, LinkSpec("slow", 100, DELAY_US))
    with nodes.inside(1):
        server = socket.create_server((links.address(1), PORT))
    with nodes.inside(0):
        one = socket.create_connection((links.address(1), PORT), timeout=30)
    other, _ = server.accept()
    start = time.perf_counter()
    one.sendall(b"there")
    other.sendall(other.recv(16))
    one.recv(16)
    return {"reason": None, "seconds": time.perf_counter() - start}


def _connection(server: socket.socket) -> dict[str, Any]:
    """Time-out in milliseconds and congestion control of both ends, after a message each way."""
    with socket.create_connection(server.getsockname()[:2], timeout=10) as one:
        other, _ = server.accept()
        with other:
            for sender, receiver in ((one, other), (other, one)) * 3:
                sender.sendall(b"x" * 1000)
                receiver.recv(1000)
            return {"ms": _time_outs((one, other)), "control": _controls((one, other))}


def _time_outs(ends: Sequence[socket.socket]) -> list[float]:
    told = [end.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, RTO_PLACE + 4) for end in ends]
    return [struct.unpack_from("I", info, RTO_PLACE)[0] / 1000 for info in told]


def _controls(ends: Sequence[socket.socket]) -> list[str]:
    told = [end.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16) for end in ends]
    return [name.rstrip(b"\0").decode() for name in told]


if __name__ == "__main__":
    what, *words = sys.argv[1:]
    asked: list[Callable[..., Any]] = [rates, timers, stall, delay]
    (ask,) = [one for one in asked if one.__name__ == what]
    print(json.dumps(ask(*words)))
