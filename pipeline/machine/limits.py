"""Limits of this machine and process: cores, a CPU quota, open files, ports, memory."""

from __future__ import annotations

import errno
import os
import re
import resource
import socket
import tempfile
from pathlib import Path, PurePosixPath

import psutil

from pipeline.errors import LaunchError, refuse

MOUNTS = Path("/proc/self/mountinfo")
OWN_GROUPS = Path("/proc/self/cgroup")
TOPOLOGY = Path("/sys/devices/system/cpu")
KILLS = Path("/proc/vmstat")

FILES = 64
"""Open files of a rank besides its connections to others; torch and its store take about half."""

RANK_BYTES = 50 << 20
"""Memory of a rank besides what it shares with others: no Python with torch has less."""

LOOPBACK = "127.0.0.1"
SHORT_OF = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRINUSE,
            errno.EACCES, errno.EPERM)  # fmt: skip
"""Errors of a socket that lacks something while the network itself is up."""


def lineage() -> list[tuple[int, Path]]:
    """Control groups of this process that can limit the CPU, the nearest first, up to each mount.

    Each is the version of its hierarchy, 1 or 2, and its folder.
    """
    mounts: dict[int, tuple[PurePosixPath, Path]] = {}  # version -> root and mount point
    for line in MOUNTS.read_text(encoding="utf-8").splitlines():
        left, _, right = line.partition(" - ")
        kind, _, options = right.split(" ", 2)
        place = PurePosixPath(left.split(" ")[3]), Path(left.split(" ")[4])
        if kind == "cgroup2":
            mounts.setdefault(2, place)
        elif kind == "cgroup" and "cpu" in re.split("[, ]", options):
            mounts.setdefault(1, place)
    groups = list[tuple[int, Path]]()
    for line in OWN_GROUPS.read_text(encoding="utf-8").splitlines():
        _, controllers, name = line.split(":", 2)
        version = 1 if controllers else 2
        if version not in mounts or (version == 1 and "cpu" not in controllers.split(",")):
            continue
        root, mount = mounts[version]
        # Without a cgroup namespace a container sees its path from the host's root.
        inside = PurePosixPath(name)
        below = inside.relative_to(root) if inside.is_relative_to(root) else inside
        own = mount / str(below).lstrip("/")
        ways = (path for path in (own, *own.parents) if path.is_relative_to(mount))
        groups += [(version, path) for path in ways]
    return groups


def cpu_quota() -> float | None:
    """The smallest quota on this process's way to the root, in cores; None where there is none.

    A container's `--cpus 2` is one: the affinity still names every core of the machine.
    """
    quotas = []
    for version, path in lineage():
        # In version 1 the quota and its period are two files.
        names = ("cpu.max",) if version == 2 else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        try:
            words = " ".join((path / name).read_text(encoding="ascii") for name in names)
            limit, period = words.split()
        except (OSError, ValueError):
            continue  # the root of a hierarchy has no such file
        if limit not in ("max", "-1"):
            quotas.append(int(limit) / int(period))
    return min(quotas, default=None)


def usable_cores() -> list[int]:
    """Numbers of the cores that this process may keep busy: its affinity, cut to its quota.

    Of a core's hardware threads the first counts: a busy second one would slow it down. A quota of
    2.5 cores gives two; under one core it gives one.
    """
    first: dict[str, int] = {}
    for thread in sorted(os.sched_getaffinity(0)):
        try:
            core = (TOPOLOGY / f"cpu{thread}/topology/thread_siblings_list").read_text("ascii")
        except OSError:  # a container may hide it
            core = str(thread)
        first.setdefault(core, thread)
    cores, quota = list(first.values()), cpu_quota()
    return cores if quota is None else cores[: max(1, int(quota))]


def check(ranks: int) -> None:
    """Raise LaunchError where `ranks` could not start or meet here; raise the limit of files."""
    least, have = ranks * RANK_BYTES, psutil.virtual_memory().total
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = FILES + 4 * ranks
    refuse(LaunchError, "", [
        (least > have,
         f"{ranks} ranks on one machine need {least / 2**30:,.0f} GiB at least, it has "
         f"{have / 2**30:,.0f}; lower cluster.nodes or cluster.ranks_per_node"),
        (resource.RLIM_INFINITY not in (soft, hard) and hard < needed,
         f"a process may open {hard} files here, {ranks} ranks need {needed} each; raise the "
         "limit (`ulimit -n`)"),
    ])  # fmt: skip
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    free_port()
    # Python would take the next of some folders without a word, and other programs end.
    folder = os.environ.get("TMPDIR") or "/tmp"  # noqa: S108, where programs look
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(1 << 20))
    except OSError as error:
        raise LaunchError(
            f"temporary files cannot be written in {folder} ({error.strerror or error}); free "
            "space there, or set TMPDIR to a folder with room"
        ) from error


def free_port(address: str = LOOPBACK) -> int:
    """A free TCP port; raises LaunchError where this machine does not reach it there."""
    try:
        with socket.socket() as listener:
            listener.bind((address, 0))
            listener.listen()
            socket.create_connection(listener.getsockname(), timeout=5).close()
            return int(listener.getsockname()[1])
    except OSError as error:
        if error.errno in SHORT_OF:
            raise LaunchError(
                f"no port can be had at {address} ({error.strerror}); raise what is too low "
                "(`ulimit -a`), end other programs, or leave the sandbox that forbids it"
            ) from error
        fix = "`ip link set lo up`" if address == LOOPBACK else "see `ip address`"
        raise LaunchError(
            f"this machine does not reach itself at {address} ({error.strerror or error}), so its "
            f"ranks would never meet; {fix}"
        ) from error


def oom_kills() -> int | None:
    """Processes that the kernel's out-of-memory killer has ended; None where it does not say.

    Those of the nearest control group that counts them, else of the whole machine.
    """
    for path in (*(path / "memory.events" for _, path in lineage()), KILLS):
        try:
            lines = path.read_text(encoding="ascii").splitlines()
        except OSError:
            continue
        for name, _, count in (line.partition(" ") for line in lines):
            if name == "oom_kill":
                return int(count)
    return None
