"""Control groups that this process is in, of both versions, and the CPU quota that they set.

A container's `--cpus 2` is such a quota: the affinity still names every core of the machine.
"""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath

MOUNTS = Path("/proc/self/mountinfo")
OWN_GROUPS = Path("/proc/self/cgroup")
TOPOLOGY = Path("/sys/devices/system/cpu")


def lineage() -> list[tuple[int, Path]]:
    """The groups of this process that can limit the CPU, the nearest first, up to each mount.

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
    """The smallest quota on this process's way to the root, in cores; None where there is none."""
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
