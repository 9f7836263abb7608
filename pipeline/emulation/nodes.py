"""Network namespaces of this process's own: a switch, nodes, and the way into them.

They need no root: a process without rights first enters a user namespace in which it has them. All
of it ends with the processes inside, so that nothing can be left behind.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline.emulation import links, tcp
from pipeline.emulation.dilation import pin, pinned
from pipeline.errors import LaunchError
from pipeline.machine import session
from pipeline.machine.limits import cpu_quota
from pipeline.machine.processes import Child, Tell, Teller
from pipeline.study.link import LinkSpec

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
OWN_NETWORK = Path("/proc/thread-self/ns/net")
SYSTEM_PATH = "/usr/sbin:/sbin"
_libc = ctypes.CDLL(None, use_errno=True)


def program(name: str) -> str:
    """Path of a program of iproute2, which users often lack on their PATH; LaunchError without."""
    path = shutil.which(name) or shutil.which(name, path=SYSTEM_PATH)
    if path is None:
        raise LaunchError(f"there is no {name}; install iproute2")
    return path


def enter_private_network() -> None:
    """Leave the machine's network for an empty one; raises LaunchError where that is forbidden.

    Call it before any thread is started: the kernel refuses a user namespace to several threads.
    """
    if _libc.unshare(CLONE_NEWNET) != 0:
        user, group = os.geteuid(), os.getegid()
        if _libc.unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0:
            raise LaunchError(
                f"no network namespace may be made here ({os.strerror(ctypes.get_errno())}); "
                "allow unprivileged user namespaces (kernel.unprivileged_userns_clone=1, "
                "kernel.apparmor_restrict_unprivileged_userns=0, user.max_user_namespaces and "
                "user.max_net_namespaces over 0) or set cluster.network to loopback"
            )
        # Whoever may not set groups may map its own one; the kernel wants this order.
        Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1", encoding="ascii")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1", encoding="ascii")
    tcp.configure()


class Nodes:
    """Nodes at a switch, in a network of this process's own: their ways in, cores and time.

    `places` are the cores of each, `dilation` the seconds of this machine for one of the cluster.
    """

    def __init__(
        self, places: Sequence[Sequence[int]], link: LinkSpec, dilation: float = 1.0
    ) -> None:
        """Leaves the machine's network for good; raises LaunchError where that is forbidden."""
        enter_private_network()
        self.places, self.count, self.dilation = places, len(places), dilation
        self._home = os.open(OWN_NETWORK, os.O_RDONLY)
        self._networks: list[int] = []
        # It stays in the switch's network while this process moves: cables lead to it.
        with Child(signal.pause, at_exit=False) as keeper:
            self._build(keeper.pid, link)

    def on_cores(self, node: int) -> AbstractContextManager[None]:
        """Be on the cores of a node for a while, with all that is started there."""
        return pinned(self.places[node])

    def move(self, node: int, step: int) -> None:
        """Pin this process to the node's cores of `step`: each node has others at the next one.

        One core may be slower than another for minutes, which would make its nodes slower ones.
        After as many steps as there are cores a node has been on each.
        """
        cores = sorted({core for place in self.places for core in place})
        pin([cores[(cores.index(core) + step) % len(cores)] for core in self.places[node]])

    def enter(self, node: int) -> None:
        """Move this thread into the network of a node."""
        _set(self._networks[node])

    def within(self, node: int) -> AbstractContextManager[None]:
        """Enter a node's network for good, and be on its cores for a while."""
        self.enter(node)
        return self.on_cores(node)

    @contextmanager
    def inside(self, node: int) -> Iterator[None]:
        """Be in the network of a node for a while."""
        self.enter(node)
        try:
            yield
        finally:
            _set(self._home)

    def tcp(self) -> dict[str, Any]:
        """Settings of TCP in the nodes, all of which were made alike."""
        with self.inside(0):
            return tcp.held(program("ip"))

    def _build(self, keeper: int, link: LinkSpec) -> None:
        """Each program is started as seldom as may be: once in a node, once for all ports."""
        _batch("ip", links.switch_commands(link))
        factor, ports, queues = self.dilation, list[str](), list[str]()
        if link.uplink_mbits is not None:
            for end in links.UPLINK_ENDS:
                queues += links.shaping_commands(end, link.uplink_mbits, factor)
        for node in range(self.count):
            if _libc.unshare(CLONE_NEWNET) != 0:
                reason = os.strerror(ctypes.get_errno())
                raise LaunchError(f"cannot make a network namespace: {reason}")
            # unshare has moved this thread into the new network, whose descriptor keeps it alive.
            self._networks.append(os.open(OWN_NETWORK, os.O_RDONLY))
            _set(self._home)
            with self.inside(node):
                tcp.configure()
                routes = tcp.route_commands(links.address(node), factor)
                _batch("ip", [*links.plug_commands(node, keeper), *routes])
                own = (links.INTERFACE, link.rate_mbits)
                _batch("tc", links.shaping_commands(*own, factor, link.delay_us))
            port, bridge = links.port(node), links.BRIDGES[links.side_of(node, self.count, link)]
            ports.append(f"link set {port} master {bridge} {links.SIZE} up")
            # At both ends of the cable: several senders could fill it several times over.
            incoming = links.towards_node(link)
            queues += links.shaping_commands(port, incoming, factor, link.delay_us)
        _batch("ip", ports)
        _batch("tc", queues)


def _set(network: int) -> None:
    """Move this thread into a network."""
    if _libc.setns(network, CLONE_NEWNET) != 0:
        raise LaunchError(f"cannot enter a network namespace: {os.strerror(ctypes.get_errno())}")


def _batch(name: str, commands: Sequence[str]) -> None:
    """Run commands of one program; raises LaunchError with the program's own first line."""
    done = subprocess.run(
        [program(name), "-batch", "-"], input="\n".join(commands), capture_output=True, text=True
    )
    if done.returncode != 0:
        reason = next(iter(done.stderr.strip().splitlines()), "it failed")
        raise LaunchError(f"{name} could not make the emulated network: {reason}")


PLAIN = LinkSpec("trial", 1000)
WITH_DELAY = replace(PLAIN, delay_us=1000)
TRIAL_SECONDS = 600.0
"""Seconds for which nodes that could be made count as possible; else making them says so."""


def why_not(link: LinkSpec = PLAIN) -> str | None:
    """None where nodes with this link can be made, else the reason with the fix, in one line."""
    quota = cpu_quota()
    if quota is not None and quota < 1:
        # The kernel stops the whole group for tens of ms at a time, in the middle of steps.
        return f"a CPU quota of {quota:g} cores stops a node within its steps; allow one core"
    tried = f"emulated nodes, {'delayed' if link.delay_us else 'undelayed'}"
    if session.recall(tried, TRIAL_SECONDS):
        return None
    if (reason := _try(PLAIN)) is not None:
        return reason
    if link.delay_us and (reason := _try(link)) is not None:
        return (
            f"a delay needs the kernel's module sch_netem, without it leave out delay_us ({reason})"
        )
    session.keep(tried, value=True)
    return None


def _try(link: LinkSpec) -> str | None:
    """Make one node with the link in a child process; the reason why it could not."""

    def make(tell: Tell) -> None:
        Nodes([[0]], link).enter(0)
        tell("made")

    try:
        with Teller(make) as child:
            child.hear()
    except LaunchError as error:  # also where a sandbox has killed it without a word
        return str(error)
    return None
