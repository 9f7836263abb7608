"""Real time on cores of its own, and the same nodes sharing a few others, at the same moment.

Two nodes in real time fit a laptop. Where a machine has cores for more of them, they are the truth
for as many emulated nodes that share a few cores.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

from bench.emulated.runs import Runs, Taken, Variant, order
from bench.emulated.undisturbed import Machine
from pipeline.models import num_parameters


class Lanes(Runs):
    """Two processes with `Runs` of their own; one has the first variant, in real time."""

    def __init__(self, nodes: int, share: int, cores: list[int], model: Mapping[str, int]) -> None:
        self.study, self.machine = self.study_of(model, nodes), Machine()
        self.num_parameters = num_parameters(self.spec("dps", 2, 1000.0).model)
        alone, shared = cores[:nodes], cores[nodes : nodes + share]
        self.lanes = [_start(one, nodes, model) for one in (alone, shared)]

    def in_turn(self, repeats: int, variants: Sequence[Variant]) -> list[list[Taken]]:
        """The first variant beside all others, which follow each other in an order of its own."""
        rounds: list[list[Taken]] = [[] for _ in variants]
        for repeat in range(repeats):
            places = [1 + place for place in order(repeat, len(variants) - 1)]
            for lane, asked in zip(self.lanes, ([0], places), strict=True):
                lane.send([variants[place] for place in asked])
            for lane, asked in zip(self.lanes, ([0], places), strict=True):
                for place, taken in zip(asked, lane.recv(), strict=True):
                    rounds[place].append(taken)
        return rounds

    def close(self) -> None:
        """End both processes."""
        for lane in self.lanes:
            lane.close()


def _start(cores: list[int], nodes: int, model: Mapping[str, int]) -> Connection:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    context.Process(target=_serve, args=(theirs, cores, nodes, model)).start()
    theirs.close()
    return ours


def _serve(asked: Connection, cores: list[int], nodes: int, model: Mapping[str, int]) -> None:
    os.sched_setaffinity(0, cores)
    with tempfile.TemporaryDirectory(prefix="samestep-") as folder:
        # The lock of timed runs lies there: what has cores of its own waits for nobody.
        os.environ["TMPDIR"] = folder
        runs = Runs(Path(folder), model=model, nodes=nodes)
        while True:
            try:
                variants: Sequence[Variant] = asked.recv()
            except EOFError:
                return
            asked.send([runs.machine.undisturbed(partial(runs.taken, one)) for one in variants])
