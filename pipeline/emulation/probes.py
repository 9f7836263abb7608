"""Core seconds and bits on the wire that the nodes really get, measured before the training.

All nodes are measured at the same moment, as they will be busy at the same moment.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from functools import partial

from pipeline.errors import LaunchError
from pipeline.machine.processes import Tell, Teller

SPIN_SECONDS = 0.2
SEND_SECONDS = 0.25
LEAD_SECONDS = 0.2  # sent before the clock starts: TCP's slow start and what the links send at once
PORT = 6000
FLOWS = 4  # connections to the next node: one alone now and then waits 40 ms for a delayed ACK
SENT_BLOCK, READ_BLOCK = 1 << 17, 1 << 13
"""Bytes a call; read in small pieces, so that a slow link is timed finely."""

ROOM_BYTES = 1 << 17  # bytes that may lie unread when the clock starts
PINGS = 200  # messages of one byte, there and back: some 20 ms of the machine
Probe = Callable[[Callable[[], None]], float]
"""Gets the function that waits until all are ready, and returns its figure."""


def measure(
    probes: Sequence[Probe], within: Callable[[int], AbstractContextManager[None]]
) -> list[float]:
    """Run each probe in a process of its own, within `within(i)`, all at once.

    The load that one began lasts until all have their figures. Raises LaunchError where one fails.
    """
    # The end of this pipe is the sign to begin: all children hear it at the same moment.
    go, begin = os.pipe()

    def run(place: int, probe: Probe, tell: Tell) -> None:
        os.close(begin)  # or it would not end where the parent closes it

        def wait_for_all() -> None:
            tell("ready")
            os.read(go, 1)

        with within(place):
            tell(probe(wait_for_all))
            signal.pause()  # its load lasts until it is killed

    works = [partial(run, place, probe) for place, probe in enumerate(probes)]
    try:
        with ExitStack() as stack:
            stack.callback(os.close, go)
            with os.fdopen(begin, "wb"):
                children = [stack.enter_context(Teller(work)) for work in works]
                for child in children:
                    child.hear()
            return [float(child.hear()) for child in children]
    except LaunchError as error:
        raise LaunchError(
            f"a probe of the emulated nodes failed: {error}; set cluster.network to loopback"
        ) from None


def spin(wait_for_all: Callable[[], None]) -> float:
    """Core seconds a second that one busy thread gets."""
    wait_for_all()
    start, cpu = time.perf_counter(), time.process_time()
    while time.perf_counter() - start < SPIN_SECONDS:
        pass
    return (time.process_time() - cpu) / (time.perf_counter() - start)


def ring(own: str, following: str, seconds: float = SEND_SECONDS) -> Probe:
    """A probe that sends to the next node while it receives; bits a second that came in."""

    def send() -> None:
        block = bytes(SENT_BLOCK)
        with suppress(OSError), socket.create_connection((following, PORT), timeout=30) as outgoing:
            while True:
                outgoing.sendall(block)

    def probe(wait_for_all: Callable[[], None]) -> float:
        with socket.create_server((own, PORT)) as server, ExitStack() as open_ones:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, ROOM_BYTES)
            wait_for_all()
            for _ in range(FLOWS):
                threading.Thread(target=send, daemon=True).start()
            flows = [open_ones.enter_context(server.accept()[0]) for _ in range(FLOWS)]
            ready, room = select.poll(), bytearray(READ_BLOCK)
            for flow in flows:
                ready.register(flow, select.POLLIN)
            by_number = {flow.fileno(): flow for flow in flows}

            def read_until(end: float) -> int:
                count = 0
                while time.perf_counter() < end:
                    for number, _ in ready.poll(1):
                        count += by_number[number].recv_into(room)
                return count

            read_until(time.perf_counter() + LEAD_SECONDS)
            start = time.perf_counter()
            count = read_until(start + seconds)
            return count * 8 / (time.perf_counter() - start)

    return probe


def echo(own: str) -> Probe:
    """A probe that sends back every byte that it gets; its figure is no measurement."""

    def probe(wait_for_all: Callable[[], None]) -> float:
        with socket.create_server((own, PORT)) as server:
            wait_for_all()
            with server.accept()[0] as peer:
                peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                while byte := peer.recv(1):
                    peer.sendall(byte)
        return 0.0

    return probe


def ping(host: str) -> Probe:
    """A probe that sends single bytes to `echo`; median seconds of one way."""

    def probe(wait_for_all: Callable[[], None]) -> float:
        wait_for_all()
        taken = []
        with socket.create_connection((host, PORT), timeout=30) as peer:
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for _ in range(PINGS):
                start = time.perf_counter()
                peer.sendall(b".")
                peer.recv(1)
                taken.append((time.perf_counter() - start) / 2)
        return statistics.median(taken)

    return probe
