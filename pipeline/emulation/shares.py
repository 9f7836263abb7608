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
import secrets
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.control_groups import Group, lineage

PERIOD_US, MIN_QUOTA_US = 10_000, 1_000
"""A node that has used its quota waits for the next period; the kernel grants no less than 1 ms."""

PREFIX = "samestep-"
OWN, QUOTA, PINNED = "own", "quota", "pinned"

# Waits until nobody holds the other end of its input, however they ended, then removes the groups.
_SWEEPER = (
    'cat >/dev/null; for i in 1 2 3 4 5 6 7 8 9; do rmdir "$@" 2>/dev/null && exit; sleep 0.3; done'
)


@dataclass
class Shares:
    """`kind` is `own`, `quota` (the groups are there) or `pinned`; `reason` says why only that.

    `idle` is a group that gets what no node wants, `home` one without a limit, for processes that
    leave a node: version 2 keeps processes to the leaves of its tree, so the parent takes none.
    """

    kind: str
    groups: Sequence[Path] = ()
    places: Sequence[Sequence[int]] = ()
    idle: Path | None = None
    home: Path | None = None
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
        if self.home is not None:
            _move_to(self.home)
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
    for parent in lineage():
        made = _make_groups(parent, share, len(places)) if os.access(parent.path, os.W_OK) else []
        if made:
            *nodes, idle, home = made
            return Shares(QUOTA, nodes, idle=idle, home=home, _sweeper=_start_sweeper(made))
    reason = "no control group with a CPU quota may be made by this user"
    return Shares(PINNED, places=places, reason=reason)


def _make_groups(parent: Group, share: float, count: int) -> list[Path]:
    """Groups with the quota, an idle one, a home; none where anything is refused, and none left."""
    period = max(PERIOD_US, round(MIN_QUOTA_US / share))
    quota = round(period * share)
    limit = (
        {"cpu.max": f"{quota} {period}"}
        if parent.version == 2
        else {"cpu.cfs_period_us": str(period), "cpu.cfs_quota_us": str(quota)}
    )
    stem = f"{PREFIX}{os.getpid()}-{secrets.token_hex(3)}"
    made: list[Path] = []
    try:
        for name, settings in [
            *((str(node), limit) for node in range(count)),
            ("idle", {"cpu.idle": "1"}),
            ("home", {}),
        ]:
            group = parent.path / f"{stem}-{name}"
            group.mkdir()
            made.append(group)
            for setting, text in settings.items():
                if not (group / setting).exists():
                    raise FileNotFoundError(setting)
                (group / setting).write_text(text, encoding="ascii")
        _check_moves(made[0], made[-1])
    except OSError:
        for group in made:
            with contextlib.suppress(OSError):
                group.rmdir()
        return []
    return made


def _check_moves(group: Path, home: Path) -> None:
    """Raise OSError where no process of ours may be moved into the group, or out of it."""
    child = os.fork()
    if child == 0:
        try:
            _move_to(group)
            _move_to(home)
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
