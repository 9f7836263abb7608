"""Each node's cores: some of its own, or those that it shares with other nodes and is paced on."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

OWN, PACED = "own", "paced"


@dataclass(frozen=True)
class Shares:
    """The cores of each node."""

    places: Sequence[Sequence[int]]

    @property
    def kind(self) -> str:
        """`own` where no two nodes share a core, else `paced`."""
        cores = [core for place in self.places for core in place]
        return OWN if len(cores) == len(set(cores)) else PACED

    @contextmanager
    def of(self, place: int) -> Iterator[None]:
        """Pin this process, and all that it starts, to the cores of node `place` for a while."""
        before = os.sched_getaffinity(0)
        _pin(self.places[place])
        yield
        _pin(before)


def _pin(cores: Iterable[int]) -> None:
    """Every thread of this process: the call for a process moves the calling thread alone."""
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread.name), cores)
