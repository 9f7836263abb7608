"""What a fault may leave on the machine besides the run's own folder: counted before and after."""

import ctypes
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

SECONDS = 20.0
"""How long the kernel may take to end what it was asked to end."""

PR_SET_CHILD_SUBREAPER = 36
LOCK = "timed.lock"


def adopt_orphans() -> None:
    """Make the processes whose parents ended children of this one, so that they can be counted."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def counted(temporary: Path) -> dict[str, list[str]]:
    """Processes below this one, files of a temporary folder, networks and control groups."""
    running = []
    children = psutil.Process().children(recursive=True)
    for process in children:
        try:
            if process.status() != psutil.STATUS_ZOMBIE:
                running.append(f"{process.pid} {' '.join(process.cmdline())[:80]}")
        except psutil.Error:
            continue
    files = [str(path.relative_to(temporary)) for path in temporary.rglob("*") if path.is_file()]
    groups = Path("/proc/self/cgroup").read_text().splitlines()
    own = [Path("/sys/fs/cgroup", *line.split(":")[2].split("/")) for line in groups]
    return {
        "processes": sorted(running),
        # The lock of timed runs stays: the kernel lets go of it.
        "temporary files": sorted(file for file in files if not file.endswith(LOCK)),
        "interfaces": sorted(path.name for path in Path("/sys/class/net").iterdir()),
        "named networks": sorted(str(path) for path in Path("/run/netns").glob("*")),
        "unnamed networks": unnamed_networks([os.getpid(), *(child.pid for child in children)]),
        "control groups": sorted(str(path) for one in own for path in one.glob("*/")),
    }


def unnamed_networks(processes: Iterable[int]) -> list[str]:
    """Network namespaces, as `net:[inode]`, that these processes are in or hold open.

    The kernel ends one that no process is in, no descriptor is of and no mount keeps, so those that
    are mounted are counted too. That of this process is left out.
    """
    found = set()
    for process in processes:
        folder = Path(f"/proc/{process}")
        with suppress(OSError):
            for path in [folder / "ns/net", *folder.glob("fd/*")]:
                found.add(str(path.readlink()))
    mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    found |= {line.split()[3] for line in mounts if " - nsfs " in line}
    own = str(Path("/proc/self/ns/net").readlink())
    return sorted(one for one in found if one.startswith("net:[") and one != own)


@contextmanager
def none_left(temporary: Path) -> Iterator[None]:
    """Fail where something is there afterwards that was not before."""
    before = counted(temporary)
    yield
    deadline = time.monotonic() + SECONDS
    while more := {
        kind: new
        for kind, found in counted(temporary).items()
        if (new := [one for one in found if one not in before[kind]])
    }:
        assert time.monotonic() < deadline, more
        time.sleep(0.05)
