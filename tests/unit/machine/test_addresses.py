"""Addresses and interfaces that lead to other machines."""

import socket

import psutil
import pytest

from pipeline.errors import LaunchError
from pipeline.machine import addresses as network


def loopback_interface() -> str:
    for name, entries in psutil.net_if_addrs().items():
        if any(entry.address == "127.0.0.1" for entry in entries):
            return name
    raise AssertionError("this machine has no loopback")


def test_the_way_to_the_loopback_is_the_loopback() -> None:
    assert network.source_address("127.0.0.1") == "127.0.0.1"
    assert network.interface_of("127.0.0.1") == loopback_interface()
    assert network.interface_of("127.0.1.1") == loopback_interface()


def test_what_leads_nowhere_is_an_error() -> None:
    with pytest.raises(LaunchError, match=r"no network interface holds 203\.0\.113\.9"):
        network.interface_of("203.0.113.9")
    with pytest.raises(LaunchError, match="no IPv4 way to"):
        network.source_address("::1")


def test_others_are_told_no_loopback_and_no_unknown_name(monkeypatch) -> None:
    def unknown(name: str) -> str:
        raise OSError("no such name")

    monkeypatch.setattr(network, "source_address", {network.ANYWHERE: "10.0.0.7"}.__getitem__)
    answers = ((lambda _: "127.0.1.1", "10.0.0.7"), (unknown, "10.0.0.7"))
    for answer, expected in (*answers, (lambda _: "10.0.0.3", "10.0.0.3")):
        monkeypatch.setattr(socket, "gethostbyname", answer)
        assert network.own_address() == expected


def test_the_interface_that_a_user_names_is_told_to_others(monkeypatch) -> None:
    monkeypatch.setattr(socket, "gethostbyname", lambda name: "10.0.0.3")
    assert network.own_address(f"{loopback_interface()},other0") == "127.0.0.1"
    with pytest.raises(LaunchError, match="GLOO_SOCKET_IFNAME is ib9, and this machine has no"):
        network.own_address("ib9")
