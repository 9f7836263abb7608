"""Core seconds and bits on the wire that the nodes really get, measured before the training.

All nodes are measured at the same moment, as they will be busy at the same moment.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from typing import NoReturn

from pipeline.errors import LaunchError
from pipeline.machine.processes import die_with_parent

SPIN_SECONDS = 0.2
SEND_SECONDS = 0.25
LEAD_SECONDS = 0.2
"""Sent before the clock starts: TCP's slow start and what the links send at once."""

PORT = 6000
FLOWS = 4
"""Connections to the next node: one alone now and then waits 40 ms for a delayed ACK."""

SENT_BLOCK, READ_BLOCK = 1 << 17, 1 << 13
"""Bytes a call; read in small pieces, so that a slow link is timed finely."""

ROOM_BYTES = 1 << 17
"""Bytes that may lie unread: those from before the clock started must not count for much."""

PINGS = 200
"""Messages of one byte, there and back: some 20 ms of the machine."""

END = b"\n"

Probe = Callable[[Callable[[], None]], float]


def measure(
    probes: Sequence[Probe],
    within: Callable[[int], AbstractContextManager[None]],
) -> list[float]:
    """Run each probe in a process of its own, within `within(i)`, all at once.

    A probe gets the function that waits until all are ready, and returns its figure; the load that
    it began lasts until all have theirs.
    """
    go_read, go_write = os.pipe()
    running = []
    for place, probe in enumerate(probes):
        result_read, result_write = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(go_write)
            _run_probe(probe, within(place), go_read, result_write)
        os.close(result_write)
        running.append((pid, result_read))
    for _, result in running:
        os.read(result, 1)
    os.close(go_write)
    os.close(go_read)
    try:
        return [_result(result) for _, result in running]
    finally:
        for pid, result in running:
            os.close(result)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _run_probe(probe: Probe, place: AbstractContextManager[None], go: int, result: int) -> NoReturn:
    """In the child: say that it is ready, wait for the others, leave the figure, wait for the end.

    `go` is a pipe that ends when all are ready.
    """

    def wait_for_all() -> None:
        os.write(result, b"r")
        os.read(go, 1)

    try:
        die_with_parent()
        with place:
            os.write(result, json.dumps(probe(wait_for_all)).encode() + END)
            signal.pause()  # its load lasts until it is killed
    except BaseException as error:
        os.write(result, f"{type(error).__name__}: {error}".encode() + END)
    finally:
        os._exit(1)


def _result(channel: int) -> float:
    text = b""
    while not text.endswith(END) and (block := os.read(channel, 4096)):
        text += block
    try:
        return float(json.loads(text))
    except ValueError:
        raise LaunchError(
            f"a probe of the emulated nodes failed: {text.decode() or 'no word'}; "
            "set cluster.network to loopback"
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
            return _receive(flows, seconds)

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


def _receive(flows: Sequence[socket.socket], seconds: float) -> float:
    room = bytearray(READ_BLOCK)
    ready = select.poll()
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
