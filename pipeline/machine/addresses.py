"""Address and network interface of this machine that lead to another one (IPv4)."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterator

import psutil

from pipeline.errors import LaunchError

INTERFACE = "GLOO_SOCKET_IFNAME"
"""Gloo's own variable, by which workflow/site.yaml names the interface between nodes, for all."""

ANYWHERE = "192.0.2.1"
"""An address of no machine (RFC 5737): the way to it is the default route. Nothing is sent."""


def source_address(host: str) -> str:
    """Address from which packets to `host` leave; raises LaunchError where no way leads there."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, 9))
            return str(probe.getsockname()[0])
    except OSError as error:
        raise LaunchError(
            f"no IPv4 way to {host} ({error.strerror or error}); name the interface "
            f"that reaches the other nodes as {INTERFACE} in workflow/site.yaml"
        ) from error


def own_address(interface: str | None = None) -> str:
    """The address under which other machines know this one.

    It is that of `interface` (the first of several), which INTERFACE names, else what the host's
    name resolves to. Debian resolves it to 127.0.1.1; then the source address of the default route
    is taken.
    """
    if chosen := (interface or "").partition(",")[0]:
        for name, address in _ipv4():
            if name == chosen:
                return address
        raise LaunchError(
            f"{INTERFACE} is {chosen}, and this machine has no IPv4 address on an interface of "
            "that name; `ip -4 address` lists those that it has"
        )
    try:
        named = socket.gethostbyname(socket.gethostname())
    except OSError:
        return source_address(ANYWHERE)
    return source_address(ANYWHERE) if is_loopback(named) else named


def interface_of(address: str) -> str:
    """Name of the interface that holds `address`; raises LaunchError when none does."""
    for name, other in _ipv4():
        if other == address or (is_loopback(address) and is_loopback(other)):
            return name
    raise LaunchError(
        f"no network interface holds {address}; name the one that reaches the other nodes as "
        f"{INTERFACE} in workflow/site.yaml"
    )


def _ipv4() -> Iterator[tuple[str, str]]:
    """Names of this machine's interfaces, each with an IPv4 address that it has."""
    for name, entries in psutil.net_if_addrs().items():
        for entry in entries:
            if entry.family == socket.AF_INET:
                yield name, entry.address


def is_loopback(address: str) -> bool:
    """True where packets to the address never leave the machine."""
    return ipaddress.ip_address(address).is_loopback
