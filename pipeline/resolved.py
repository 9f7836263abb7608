"""`ResolvedRun`: a run with what its strategy makes of it, handed from launch to record.

`runs_of(study)` makes those of a study once, `resolve(spec)` that of a spec from elsewhere, which a
rank or a record has: each loads the strategy and asks it for the layout. Planner, requests,
launchers, forked ranks and the record take the one object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache

from pipeline import strategies
from pipeline.parallel.mesh import Layout
from pipeline.strategies.base import Strategy
from pipeline.study.expansion import expand
from pipeline.study.link import LinkSpec
from pipeline.study.spec import RunSpec, WorldSpec
from pipeline.study.study import Study


@dataclass(frozen=True)
class ResolvedRun:
    """A spec, its strategy and layout, and the network that the nodes get.

    The network is the spec's until a start on this machine finds that it cannot be had; then
    `network_reason` says why.
    """

    spec: RunSpec
    strategy: Strategy
    layout: Layout
    network: str
    network_reason: str | None = None

    @property
    def link(self) -> LinkSpec | None:
        """The cable of each emulated node; None on another network."""
        return self.spec.world.link

    @property
    def link_name(self) -> str | None:
        """The name of that cable, under which a calibration has its collectives."""
        return self.link.name if self.link else None

    @property
    def ranks_per_machine(self) -> int:
        """Ranks that share one machine: those of all its nodes."""
        return self.layout.num_processes // self.spec.world.num_machines

    @property
    def gpus_per_machine(self) -> int:
        """GPUs that the ranks on one machine take, none on a CPU."""
        on_gpus = self.spec.world.device == "cuda"
        return self.ranks_per_machine * self.layout.devices_per_process * on_gpus

    def threads_on(self, num_cores: int) -> int:
        """Threads of each rank: as the spec states, else a machine's cores shared by its ranks.

        One on an emulated node, whose pacing counts one: other cores of it carry the communication.
        """
        world = self.spec.world
        if world.threads_per_rank is not None:
            return world.threads_per_rank
        if world.network == "emulated":
            return 1
        return max(1, num_cores // self.ranks_per_machine)


def resolve(spec: RunSpec) -> ResolvedRun:
    """The run of a spec; raises StudyError where strategy, options and world do not go together."""
    strategy = strategies.load(spec.strategy, spec.options)
    return ResolvedRun(spec, strategy, strategy.layout(spec.world), spec.world.network)


@lru_cache(maxsize=8)
def runs_of(
    study: Study, specs: Callable[[Study], Iterable[RunSpec]] = expand
) -> tuple[ResolvedRun, ...]:
    """The timed runs of a study, or those of `every_run` or `planned_order`; made once.

    Raises StudyError as `resolve` does.
    """
    # Repeats, and profiled runs of a cell in the same world, share its strategy and layout.
    firsts: dict[tuple[str, WorldSpec], ResolvedRun] = {}
    runs = []
    for spec in specs(study):
        if (place := (spec.cell, spec.world)) not in firsts:
            firsts[place] = resolve(spec)
        runs.append(replace(firsts[place], spec=spec))
    return tuple(runs)


def first_runs(study: Study) -> list[ResolvedRun]:
    """The first timed run of each cell and node count."""
    return [run for run in runs_of(study) if run.spec.repeat == 0]
