"""TCP of emulated nodes: its timers are dilated or removed, and its counters tell of stalls.

A timer in seconds of the machine is shorter in seconds of the cluster, by the dilation:

- The least retransmission time-out (200 ms in Linux) is set on the routes, dilated.
- Delayed ACKs (40 to 200 ms) cannot be lengthened, so they are off at every factor.
- A connection keeps its window while it is idle (`tcp_slow_start_after_idle=0`).
- No loss probes (`tcp_early_retrans=0`): their least time, two ticks of the kernel, is over before
  a slow link has let a gradient pass, and what they send again takes the link's time.
- Windows and buffers are as large from the start as they would grow to. They grow by clocks (what a
  socket may have in the queue of its link is what passes in a millisecond), so at a higher factor a
  sender came back later from the same message.
- Congestion control is Reno, which counts ACKs; the clocks of CUBIC and BBR cannot be dilated, and
  else it would be the machine's choice. Links lose nothing, so its window only grows.

Left as they are: the time-outs of connecting (1 s) and the largest time-out (120 s).
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.emulation import pacing
from pipeline.emulation.links import INTERFACE

RTO_MIN_SECONDS = 0.2  # Linux's least time-out of a retransmission
CONGESTION_CONTROL = "reno"

WINDOW_PACKETS = 500  # initial window of a connection: with jumbo frames a full send buffer
SETTINGS = {
    "ipv4/tcp_slow_start_after_idle": "0",
    "ipv4/tcp_congestion_control": CONGESTION_CONTROL,
    "ipv4/tcp_early_retrans": "0",
    # A new connection starts afresh, not from what the kernel kept of an earlier one.
    "ipv4/tcp_no_metrics_save": "1",
    # Least, initial and largest bytes; the largest are Linux's own.
    "ipv4/tcp_wmem": "4096 4194304 4194304",
    "ipv4/tcp_rmem": "4096 6291456 6291456",
    # Its own packets would mix with the training's.
    "ipv6/conf/all/disable_ipv6": "1",
    "ipv6/conf/default/disable_ipv6": "1",
}
"""Settings of the kernel below `_SETTINGS` that are no property of a route."""

_SETTINGS = Path("/proc/sys/net")

_COUNTERS = Path("/proc/thread-self/net")
TIMEOUTS = "TCPTimeouts"
COUNTED = (
    "RetransSegs",
    TIMEOUTS,
    "TCPLossProbes",
    "TCPSpuriousRtxHostQueues",
    "TCPBacklogDrop",
    "TCPRcvQDrop",
)
"""Counters of a network that are recorded, where the kernel has them."""


def route_commands(address: str, factor: float) -> list[str]:
    """For `ip -batch` within a node: how TCP behaves towards other nodes, and within the node."""
    subnet = address.rpartition(".")[0] + ".0/24"
    behaviour = (
        f"src {address} rto_min {round(RTO_MIN_SECONDS * 1000 * factor)}ms quickack 1 "
        f"initcwnd {WINDOW_PACKETS} initrwnd {WINDOW_PACKETS} congctl {CONGESTION_CONTROL}"
    )
    return [
        f"route replace {subnet} dev {INTERFACE} proto kernel scope link {behaviour}",
        f"route replace local {address} dev lo table local proto kernel scope host {behaviour}",
    ]


def configure() -> None:
    """Within a new network: make `SETTINGS`, where the kernel's are not closed."""
    for name, value in SETTINGS.items():
        with contextlib.suppress(OSError):
            (_SETTINGS / name).write_text(value, encoding="ascii")


def held(ip: str) -> dict[str, Any]:
    """Settings of the node that this thread is in, as the kernel says; `ip` is the program.

    An absent property of the route is the kernel's default, and so is a setting that is hidden.
    """

    def setting(name: str, default: str) -> str:
        try:
            return (_SETTINGS / "ipv4" / name).read_text(encoding="ascii").strip()
        except OSError:
            return default

    command = [ip, "-json", "route", "show", "dev", INTERFACE]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    (route,) = json.loads(done.stdout)
    metrics: dict[str, Any] = {}
    for metric in route.get("metrics", []):
        metrics |= metric
    control = setting("tcp_congestion_control", "cubic")
    return {
        "rto_min_ms": metrics.get("rto_min", round(RTO_MIN_SECONDS * 1000)),
        "quickack": bool(metrics.get("quickack", 0)),
        "slow_start_after_idle": setting("tcp_slow_start_after_idle", "1") != "0",
        "loss_probes": setting("tcp_early_retrans", "3") != "0",
        "congestion_control": metrics.get("congestion", control),
        "initial_window": metrics.get("initcwnd", 10),
        "send_buffer_bytes": int(setting("tcp_wmem", "0 16384 0").split()[1]),
    }


def counters() -> dict[str, int] | None:
    """`COUNTED` of this rank's node since it was made; None where this is no emulated node."""
    if pacing.VARIABLE not in os.environ:
        return None
    # The kernel's tables have two lines for each protocol: `Tcp: name name`, `Tcp: 1 2`.
    text = "".join((_COUNTERS / name).read_text(encoding="ascii") for name in ("snmp", "netstat"))
    lines = [line.split() for line in text.splitlines()]
    table = dict[str, str]()
    for names, counts in zip(lines[::2], lines[1::2], strict=True):
        if names[0].startswith("Tcp"):
            table.update(zip(names[1:], counts[1:], strict=True))
    return {name: int(table[name]) for name in COUNTED if name in table}


def since(before: Mapping[str, int] | None) -> dict[str, int] | None:
    """By how much the counters have grown; None where this is no emulated node."""
    now = counters()
    if before is None or now is None:
        return None
    return {name: max(0, count - before.get(name, 0)) for name, count in now.items()}


def sent_bytes() -> int | None:
    """Bytes that this rank's node has sent over its cable, with all headers; None elsewhere.

    The kernel's table has a line for each interface: `eth0:`, 8 numbers received, 8 sent.
    """
    if pacing.VARIABLE not in os.environ:
        return None
    lines = (_COUNTERS / "dev").read_text(encoding="ascii").splitlines()
    numbers = (line.partition(":")[2].split() for line in lines if INTERFACE in line)
    return next((int(each[8]) for each in numbers), None)
