"""Needs of each cell of a study at each node count: memory of the largest rank, time, GPUs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pipeline.planner.memory import MEBIBYTE, Memory, formula_24, predict
from pipeline.resolved import ResolvedRun
from pipeline.study.spec import RunSpec

GIBIBYTE = 1024 * MEBIBYTE
MARGIN = {"cuda": 0.1, "cpu": 0.3}
"""A need this close to the memory, from either side, is called tight.

On a CPU the peak was up to 30 % over the prediction, because the C library keeps freed blocks
(docs/decisions, memory-and-flops); on CUDA it is assumed.
"""


@dataclass(frozen=True)
class CellPlan:
    """One cell at one node count: its first run, how many there may be, and what a rank needs.

    `needed_bytes` is what one device must hold: the largest rank on a GPU, all ranks of one
    machine on CPUs.
    """

    spec: RunSpec
    num_runs: int
    memory: Memory
    formula_bytes: int
    needed_bytes: int
    gpus: int
    idle_share: float | None
    """Share of a step in which ranks wait by design: a pipeline's bubble, by its formula."""

    @property
    def hours(self) -> float:
        """Upper bound of the time of all runs, from their time limit."""
        return self.num_runs * self.spec.timeout_seconds / 3600

    def verdict(self, limit: int) -> str:
        """`fits`, `tight` within `MARGIN` of it, or `does not fit`."""
        margin = MARGIN[self.spec.world.device]
        if self.needed_bytes > limit * (1 + margin):
            return "does not fit"
        return "fits" if self.needed_bytes <= limit * (1 - margin) else "tight"


def plan_study(runs: Iterable[ResolvedRun]) -> list[CellPlan]:
    """A plan for each cell and node count, in the order of the study."""
    grouped: dict[tuple[str, int], list[ResolvedRun]] = {}
    for run in runs:
        grouped.setdefault((run.spec.cell, run.spec.world.nodes), []).append(run)
    plans = []
    for members in grouped.values():
        run, spec = members[0], members[0].spec
        memories = [predict(run, rank) for rank in range(run.layout.num_processes)]
        largest = max(memories, key=lambda memory: memory.peak)
        shared = sum(memory.peak for memory in memories[: run.ranks_per_machine])
        plans.append(
            CellPlan(
                spec=spec,
                num_runs=len(members),
                memory=largest,
                formula_bytes=formula_24(run),
                needed_bytes=shared if spec.world.device == "cpu" else largest.peak,
                gpus=spec.world.num_machines * run.gpus_per_machine,
                idle_share=run.strategy.idle_share(spec),
            )
        )
    return plans
