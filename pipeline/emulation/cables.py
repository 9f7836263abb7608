"""Whether the cables of emulated nodes are still there: the kernel tells when one goes.

A node without its cable would wait for its peers until its time limit, and a lost cable would look
like a slow strategy. Listening costs one system call for all networks.
"""

from __future__ import annotations

import select
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress

# Of linux/netlink.h, linux/rtnetlink.h and linux/if.h.
_LINKS = 1
_NEW, _GONE = 16, 17
_NAME = 3
_WORKS = 0x1 | 0x40
"""An interface is up, and has a cable with something at its other end."""

_HEADER, _LINK, _ATTRIBUTE = struct.Struct("=IHHII"), struct.Struct("=BxHiII"), struct.Struct("=HH")
_MOST_BYTES = 1 << 16


class Cables:
    """Hears of every change of an interface in the networks that it listens in."""

    def __init__(self) -> None:
        self._ears: dict[int, tuple[str, socket.socket]] = {}
        self._poll = select.epoll()

    def listen(self, place: str) -> None:
        """Hear of the network that this thread is in from now on; `place` is its name."""
        ear = socket.socket(
            socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, socket.NETLINK_ROUTE
        )
        ear.bind((0, _LINKS))
        self._ears[ear.fileno()] = (place, ear)
        self._poll.register(ear, select.EPOLLIN)

    def fault(self, seconds: float) -> str | None:
        """Wait for so long, or until an interface changes; names one that was lost, else None."""
        for number, _ in self._poll.poll(seconds):
            place, ear = self._ears[number]
            # What was too much for the queue is lost, and the rest of it is read the next time.
            with suppress(OSError):
                while message := ear.recv(_MOST_BYTES):
                    for name, is_there in changes(message):
                        if not is_there:
                            return f"{name} of {place} was removed, unplugged or set down"
        return None


def changes(message: bytes) -> Iterator[tuple[str, bool]]:
    """Name of each interface of a message of the kernel, and whether it still works."""
    while len(message) >= _HEADER.size + _LINK.size:
        length, kind, *_ = _HEADER.unpack_from(message)
        if length < _HEADER.size + _LINK.size:
            return
        if kind in (_NEW, _GONE):
            *_, flags, _ = _LINK.unpack_from(message, _HEADER.size)
            name = _name(message[_HEADER.size + _LINK.size : length])
            yield name, kind == _NEW and flags & _WORKS == _WORKS
        message = message[_aligned(length) :]


def _name(attributes: bytes) -> str:
    while len(attributes) >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(attributes)
        if kind == _NAME:
            return attributes[_ATTRIBUTE.size : length].rstrip(b"\0").decode(errors="replace")
        attributes = attributes[max(_aligned(length), _ATTRIBUTE.size) :]
    return "an interface"


def _aligned(length: int) -> int:
    return length + 3 & ~3
