"""`ResolvedRun`: a run with what its strategy makes of it, handed from launch to record.

`resolve(spec)` loads the strategy and asks it for the layout: once where a process has expanded a
study or has read a spec or a record. Planner, requests, launchers, forked ranks and the record take
the one object.
"""

from __future__ import annotations

from dataclasses import dataclass

from pipeline import strategies
from pipeline.parallel.mesh import Layout
from pipeline.strategies.base import Strategy
from pipeline.study.link import LinkSpec
from pipeline.study.spec import RunSpec


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
    def ranks_per_machine(self) -> int:
        """Ranks that share one machine: those of all its nodes."""
        return self.layout.processes_per_machine(self.spec.world)

    @property
    def gpus_per_machine(self) -> int:
        """GPUs that the ranks on one machine take, none on a CPU."""
        return self.layout.gpus_per_machine(self.spec.world)

    def threads_on(self, num_cores: int) -> int:
        """Threads of each rank: as the spec states, else a machine's cores shared by its ranks."""
        world = self.spec.world
        if world.threads_per_rank is not None:
            return world.threads_per_rank
        if world.cores_per_node is not None:
            return max(1, world.cores_per_node // self.layout.processes_per_node)
        return max(1, num_cores // self.ranks_per_machine)


def resolve(spec: RunSpec) -> ResolvedRun:
    """The run of a spec; raises StudyError where strategy, options and world do not go together."""
    strategy = strategies.load(spec.strategy, spec.options)
    return ResolvedRun(spec, strategy, strategy.layout(spec.world), spec.world.network)
