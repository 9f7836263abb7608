"""Some nodes on this one machine, each with a network and a host name of its own.

    with Nodes(folder, nodes=2) as nodes:
        nodes.run(["hostname"], node="wn1")

A head and the nodes wn1, wn2, ... share one private set of namespaces: mounts, processes, host
names and network. Inside, every node has a network of its own on a bridge, so that no node reaches
another one's loopback, and finds the others by name. Files are shared, as on a cluster with a
shared file system. Process 1 of the set, the keeper, reads from a pipe that this process holds. The
kernel closes the pipe when this process ends, in whatever way, and with the keeper end all
processes, mounts and networks of the set. Nothing is written outside `folder`.

Needs root and Debian's package iproute2; `why_missing` says what is missing.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

TOOLS = {"util-linux": ("unshare", "nsenter"), "iproute2": ("ip",)}
SYSTEM_PATH = "/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin"
UNSHARE = "unshare --mount --net --uts --ipc --pid --fork --kill-child --mount-proc".split()
# Ignoring SIGCHLD reaps what daemons leave behind. The keeper starts nothing that would inherit it.
KEEPER = """
import signal, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
print("up", flush=True)
sys.stdin.read()
"""
HEAD, NETWORK, HEAD_HOST = "head", "10.77.0", 254
MAX_NODES = 32


def why_missing(tools: Mapping[str, Sequence[str]] = TOOLS) -> str | None:
    """Why no nodes can start here, or None; `tools` are commands by Debian package."""
    if os.geteuid() != 0:
        return "nodes in namespaces need root"
    for package, commands in tools.items():
        for command in commands:
            if shutil.which(command, path=environment()["PATH"]) is None:
                return f"no {command}: needs Debian's package {package}"
    probe = [*UNSHARE, "ip", "link", "add", "probe", "type", "bridge"]
    done = subprocess.run(probe, env=environment(), capture_output=True, text=True)
    return f"no namespaces and bridges here: {done.stderr.strip()}" if done.returncode else None


class ClusterError(RuntimeError):
    """A command or a state that was waited for failed; the message ends with the logs' tails."""


class Nodes:
    """`nodes` nodes that run nothing yet; `folder` receives `etc` and the logs."""

    def __init__(self, folder: Path, nodes: int = 2) -> None:
        if not 1 <= nodes <= MAX_NODES:
            raise ValueError(f"nodes is {nodes}; expected 1 to {MAX_NODES}")
        self.folder = folder.resolve()
        self.names = [f"wn{i}" for i in range(1, nodes + 1)]
        self._keeper: subprocess.Popen[str] | None = None
        self._networks: dict[str, int] = {}

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def address(self, node: str) -> str:
        """IPv4 address of a node."""
        return f"{NETWORK}.{self.names.index(node) + 1}"

    def run(
        self,
        command: Sequence[str],
        *,
        node: str | None = None,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        check: bool = True,
        timeout: float = 120,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on the head, or on a node, and keep what it prints.

        Raises:
            ClusterError: it ended with another status than 0, and `check` is true.
        """
        done = subprocess.run(
            self._inside(command, node, cwd),
            env=environment(env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        if check and done.returncode:
            said = done.stdout + done.stderr
            raise ClusterError(f"{list(command)} ended with {done.returncode}: {said}{self.logs()}")
        return done

    def popen(
        self,
        command: Sequence[str],
        *,
        node: str | None = None,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        **options: Any,
    ) -> subprocess.Popen[str]:
        """Start a command on the head, or on a node; `options` are those of `subprocess.Popen`.

        The process started here only waits for the one inside: signal both with `os.killpg`.
        """
        inside = self._inside(command, node, cwd)
        return subprocess.Popen(
            inside, env=environment(env), text=True, start_new_session=True, **options
        )

    def kill_processes(self, node: str, name: str) -> None:
        """Kill the processes of a node whose command has this name, with SIGKILL."""
        network = self._networks[node]
        while pids := [pid for pid in _pids() if _network(pid) == network and _name(pid) == name]:
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue

    def wait_for(self, what: str, holds: Callable[[], bool], seconds: float = 60) -> None:
        """Wait until something holds.

        Raises:
            ClusterError: it does not after `seconds`.
        """
        end = time.monotonic() + seconds
        while not holds():
            if time.monotonic() > end:
                raise ClusterError(f"not within {seconds:g} s: {what}{self.logs()}")
            time.sleep(0.1)

    def logs(self, lines: int = 15) -> str:
        """The last lines of every log in `folder`, for the message of a failure."""
        tails = [""]
        for path in sorted((self.folder / "log").glob("*.log")):
            tails += [f"== {path.name}", *path.read_text(errors="replace").splitlines()[-lines:]]
        return "\n".join(tails)

    def close(self) -> None:
        """End every process of the nodes; networks, mounts and private files go with them."""
        if self._keeper is None:
            return
        assert self._keeper.stdin is not None and self._keeper.stdout is not None
        self._keeper.stdin.close()
        try:
            self._keeper.wait(10)
        except subprocess.TimeoutExpired:
            self._keeper.kill()
            self._keeper.wait()
        self._keeper.stdout.close()
        self._keeper = None

    def _start(self) -> None:
        (self.folder / "etc").mkdir(parents=True, exist_ok=True)
        self._keeper = subprocess.Popen(
            [*UNSHARE, sys.executable, "-I", "-c", KEEPER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
            start_new_session=True,
        )
        assert self._keeper.stdout is not None
        if self._keeper.stdout.readline() != "up\n":
            raise ClusterError(f"no namespaces: {why_missing()}")
        for target in ("/run", "/dev/shm"):
            self.run(["mount", "-t", "tmpfs", "-o", "mode=1777", "tmpfs", target])
        self.run(["mkdir", "/run/netns", "/run/uts"])
        self._name_hosts()
        self._make_networks()

    def _name_hosts(self) -> None:
        hosts = ["127.0.0.1 localhost", f"{NETWORK}.{HEAD_HOST} {HEAD}"]
        hosts += [f"{self.address(name)} {name}" for name in self.names]
        path = self.folder / "etc" / "hosts"
        path.write_text("\n".join(hosts) + "\n")
        self.run(["mount", "--bind", str(path), "/etc/hosts"])
        self.run(["hostname", HEAD])

    def _make_networks(self) -> None:
        self._ip("link set lo up")
        self._ip("link add bridge0 type bridge")
        self._ip(f"addr add {NETWORK}.{HEAD_HOST}/24 dev bridge0")
        self._ip("link set bridge0 up")
        for name in self.names:
            self._ip(f"netns add {name}")
            self._ip(f"link add port-{name} type veth peer name eth0 netns {name}")
            self._ip(f"link set port-{name} master bridge0 up")
            self._ip(f"-n {name} link set lo up")
            self._ip(f"-n {name} addr add {self.address(name)}/24 dev eth0")
            self._ip(f"-n {name} link set eth0 up")
            self.run(["touch", f"/run/uts/{name}"])
            self.run(["unshare", f"--uts=/run/uts/{name}", "hostname", name])
            inode = self.run(["stat", "--format=%i", f"/run/netns/{name}"])
            self._networks[name] = int(inode.stdout)

    def _ip(self, arguments: str) -> None:
        self.run(["ip", *arguments.split()])

    def _inside(self, command: Sequence[str], node: str | None, cwd: Path | None) -> list[str]:
        if self._keeper is None:
            raise ClusterError("the nodes are not running; use them in a with block")
        pid = self._keeper.pid
        enter = ["nsenter", f"--target={pid}", "--mount", "--net", "--uts", "--ipc"]
        enter.append(f"--pid=/proc/{pid}/ns/pid_for_children")
        if node is not None:
            enter += ["nsenter", f"--net=/run/netns/{node}", f"--uts=/run/uts/{node}"]
        return [*enter, "env", f"--chdir={cwd or self.folder}", *command]


def environment(env: Mapping[str, str] | None = None) -> dict[str, str]:
    """`env`, or this process's own environment, with the folders of daemons on PATH."""
    base = dict(os.environ if env is None else env)
    return base | {"PATH": f"{base.get('PATH', '')}:{SYSTEM_PATH}"}


def _pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _network(pid: int) -> int | None:
    """Inode of a process's network namespace, or None once it has ended."""
    try:
        return (Path("/proc") / str(pid) / "ns" / "net").stat().st_ino
    except OSError:
        return None


def _name(pid: int) -> str | None:
    try:
        return (Path("/proc") / str(pid) / "comm").read_text().strip()
    except OSError:
        return None
