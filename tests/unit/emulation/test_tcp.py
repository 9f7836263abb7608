"""TCP's timers in dilated time, and its counters."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.emulation import pacing, tcp

SNMP = """Ip: Forwarding DefaultTTL
Ip: 1 64
Tcp: RtoAlgorithm MaxConn RetransSegs
Tcp: 1 -1 {resent}
Udp: InDatagrams
Udp: 7
"""
NETSTAT = """TcpExt: SyncookiesSent TCPTimeouts TCPLossProbes TCPBacklogDrop
TcpExt: 0 {late} 5 0
IpExt: InOctets
IpExt: 99
"""


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder that stands for the kernel's settings and tables of a node."""
    settings = tmp_path / "sys"
    (settings / "ipv4").mkdir(parents=True)
    monkeypatch.setattr(tcp, "_SETTINGS", settings)
    monkeypatch.setattr(tcp, "_COUNTERS", tmp_path)
    return tmp_path


def write(kernel: Path, resent: int, late: int) -> None:
    (kernel / "snmp").write_text(SNMP.format(resent=resent))
    (kernel / "netstat").write_text(NETSTAT.format(late=late))


def test_settings_that_are_closed_stay_as_they_are(kernel: Path) -> None:
    """As in a container whose /proc/sys may only be read."""
    for name in tcp.SETTINGS:
        (kernel / "sys/ipv4" / name).mkdir()  # nobody can write a folder, not even root
    tcp.configure()
    tcp.without_ipv6()


def test_a_node_knows_what_its_cable_carried(kernel: Path, monkeypatch) -> None:
    lines = ["Inter-| Receive | Transmit", " face |bytes packets ... |bytes packets ..."]
    lines += [f"    lo: {' '.join('1' * 16)}", "  eth0: 90 1 0 0 0 0 0 0 176 2 0 0 0 0 0 0"]
    (kernel / "dev").write_text("\n".join(lines) + "\n")
    monkeypatch.delenv(pacing.VARIABLE, raising=False)
    assert tcp.sent_bytes() is None
    monkeypatch.setenv(pacing.VARIABLE, "1")
    assert tcp.sent_bytes() == 176


def test_what_counters_grew_by_is_kept_where_the_kernel_has_them(kernel, monkeypatch) -> None:
    monkeypatch.setenv(pacing.VARIABLE, "1")
    write(kernel, 3, 1)
    before = tcp.counters()
    assert before == {"RetransSegs": 3, "TCPTimeouts": 1, "TCPLossProbes": 5, "TCPBacklogDrop": 0}
    write(kernel, 10, 8)
    assert tcp.since(before) == {
        "RetransSegs": 7,
        "TCPTimeouts": 7,
        "TCPLossProbes": 0,
        "TCPBacklogDrop": 0,
    }
