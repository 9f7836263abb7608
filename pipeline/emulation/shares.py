"""Each node's share of the cores: cores of its own, a quota of a control group, or fairness.

Where there are as many cores as the nodes need, each node is pinned to its own. Else a quota is a
hard limit: a node whose neighbours wait gets no more than its share, as a machine of its own would
not. Where no quota may be set, nodes are pinned to cores that they share by the kernel's fairness,
which gives the time that one does not use to the others; then work that one rank does alone looks
faster than it is.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

PERIOD_US, MIN_QUOTA_US = 10_000, 1_000
"""A node that has used its quota waits for the next period; the kernel grants no less than 1 ms."""

MOUNTS = Path("/proc/self/mountinfo")
OWN_GROUPS = Path("/proc/self/cgroup")
PREFIX = "samestep-"
OWN, QUOTA, PINNED = "own", "quota", "pinned"

# Waits until nobody holds the other end of its input, however they ended, then removes the groups.
_SWEEPER = (
    'cat >/dev/null; for i in 1 2 3 4 5 6 7 8 9; do rmdir "$@" 2>/dev/null && exit; sleep 0.3; done'
)


@dataclass
class Shares:
    """`kind` is `own`, `quota` (the groups are there) or `pinned`; `reason` says why only that.

    `idle` is a group that gets what no node wants.
    """

    kind: str
    groups: Sequence[Path] = ()
    places: Sequence[Sequence[int]] = ()
    idle: Path | None = None
    reason: str | None = None
    _sweeper: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @contextmanager
    def of(self, place: int) -> Iterator[None]:
        """Limit this process, and all that it starts, to the share of node `place` for a while."""
        before = os.sched_getaffinity(0)
        if self.places:
            _pin(self.places[place])
        if self.groups:
            _move_to(self.groups[place])
        yield
        if self.groups:
            _move_to(self.groups[place].parent)
        _pin(before)

    def close(self) -> None:
        """Remove the groups; their processes have ended."""
        if self._sweeper is not None and self._sweeper.stdin is not None:
            self._sweeper.stdin.close()
            self._sweeper.wait()


def _move_to(group: Path) -> None:
    (group / "cgroup.procs").write_text(str(os.getpid()), encoding="ascii")


def _pin(cores: Iterable[int]) -> None:
    """Every thread of this process: the call for a process moves the calling thread alone."""
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread.name), cores)


def make_shares(share: float, places: Sequence[Sequence[int]]) -> Shares:
    """A share of `share` cores for each place, by what this user may and the places need."""
    cores = [core for place in places for core in place]
    if len(cores) == len(set(cores)) and share == len(places[0]):
        return Shares(OWN, places=places)
    for parent, version in _parents():
        made = _make_groups(parent, version, share, len(places))
        if made:
            *nodes, idle = made
            return Shares(QUOTA, nodes, idle=idle, _sweeper=_start_sweeper(made))
    reason = "no control group with a CPU quota may be made by this user"
    return Shares(PINNED, places=places, reason=reason)


def _parents() -> list[tuple[Path, int]]:
    """Groups that may take a new one below them, the nearest first, each with its version."""
    mounts = _mounts()
    found: list[tuple[Path, int]] = []
    for line in OWN_GROUPS.read_text(encoding="utf-8").splitlines():
        _, controllers, own = line.split(":", 2)
        version = 1 if controllers else 2
        if version == 1 and "cpu" not in controllers.split(","):
            continue
        root = mounts.get(version)
        if root is not None:
            nearest = root / own.lstrip("/")
            lineage = [p for p in (nearest, *nearest.parents) if p.is_relative_to(root)]
            found += [(parent, version) for parent in lineage if os.access(parent, os.W_OK)]
    return found


def _mounts() -> dict[int, Path]:
    """Where the hierarchies that can hold a CPU quota are mounted, by their version."""
    found: dict[int, Path] = {}
    for line in MOUNTS.read_text(encoding="utf-8").splitlines():
        left, _, right = line.partition(" - ")
        kind, _, options = right.split(" ", 2)
        point = Path(left.split(" ")[4])
        if kind == "cgroup2":
            found.setdefault(2, point)
        elif kind == "cgroup" and "cpu" in re.split("[, ]", options):
            found.setdefault(1, point)
    return found


def _make_groups(parent: Path, version: int, share: float, count: int) -> list[Path]:
    """Groups with the quota, then an idle one; none where anything is refused, and none left."""
    period = max(PERIOD_US, round(MIN_QUOTA_US / share))
    quota = round(period * share)
    settings = (
        {"cpu.max": f"{quota} {period}"}
        if version == 2
        else {"cpu.cfs_period_us": str(period), "cpu.cfs_quota_us": str(quota)}
    )
    stem = f"{PREFIX}{os.getpid()}-{secrets.token_hex(3)}"
    made: list[Path] = []
    try:
        for place in range(count + 1):
            group = parent / f"{stem}-{place}"
            group.mkdir()
            made.append(group)
            own = settings if place < count else {"cpu.idle": "1"}
            for name, text in own.items():
                if not (group / name).exists():
                    raise FileNotFoundError(name)
                (group / name).write_text(text, encoding="ascii")
        _check_entry(made[0])
    except OSError:
        for group in made:
            with contextlib.suppress(OSError):
                group.rmdir()
        return []
    return made


def _check_entry(group: Path) -> None:
    """Raise OSError where no process of ours may be moved into the group."""
    child = os.fork()
    if child == 0:
        try:
            (group / "cgroup.procs").write_text(str(os.getpid()), encoding="ascii")
        except OSError:
            os._exit(1)
        os._exit(0)
    if os.waitpid(child, 0)[1] != 0:
        raise PermissionError(group)


def _start_sweeper(groups: Sequence[Path]) -> subprocess.Popen[bytes]:
    """What removes the groups also after a SIGKILL of everybody else."""
    return subprocess.Popen(
        ["sh", "-c", _SWEEPER, "sh", *map(str, groups)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
