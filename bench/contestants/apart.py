"""A contestant in a process of its own, as it is when somebody trains with it.

What a program sets for its whole process, such as how memory is allocated, is then its own. The
processes train in turn; one that waits for its turn sleeps.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection

from bench.contestants.setting import Make, Setting


class Apart:
    """The contestant that `make` makes in a new process, after `begin` there."""

    def __init__(
        self, make: Make, name: str, setting: Setting, begin: Callable[[], object] | None = None
    ) -> None:
        self.name = name
        context = multiprocessing.get_context("spawn")
        self._ours, theirs = context.Pipe()
        arguments = (theirs, make, setting, begin)
        self._process = context.Process(target=_serve, args=arguments, daemon=True)
        self._process.start()
        theirs.close()
        self._ours.recv()

    def train(self, steps: int) -> float:
        """Have it take so many steps; raises EOFError where its process has ended."""
        self._ours.send(steps)
        loss: float = self._ours.recv()
        return loss

    def close(self) -> None:
        """End its process."""
        self._ours.close()
        self._process.join()


def _serve(
    asked: Connection, make: Make, setting: Setting, begin: Callable[[], object] | None
) -> None:
    if begin is not None:
        begin()
    contestant = make(setting)
    asked.send(None)
    while True:
        try:
            steps = asked.recv()
        except EOFError:
            return
        asked.send(contestant.train(steps))
