"""Single device: one process, no communication - the run that every other is held against."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pipeline.errors import StudyError
from pipeline.parallel.mesh import Degrees, Layout
from pipeline.parallel.types import Parts, Trainable
from pipeline.strategies.base import Footprint, Strategy
from pipeline.study.spec import RunSpec, WorldSpec


@dataclass(frozen=True)
class Single(Strategy):
    """The study's 'Single GPU'."""

    whole_forward = True
    use = "the reference of every other"

    def layout(self, world: WorldSpec) -> Layout:
        """One rank; raises StudyError for a larger world."""
        if world.size != 1:
            raise StudyError(
                f"strategy single runs on 1 rank, given {world.nodes} nodes x "
                f"{world.ranks_per_node} ranks; set the cell's nodes to [1] and ranks_per_node to 1"
            )
        return super().layout(world)

    def knobs(self, degrees: Degrees) -> dict[str, Any] | None:
        """None of its own, for one device."""
        return {} if degrees == Degrees(microbatches=degrees.microbatches) else None

    def one_graph(self, spec: RunSpec) -> bool:
        """True: nothing is sent that could overlap."""
        return True

    def footprint(self, spec: RunSpec, layout: Layout, rank: int, gradients: int) -> Footprint:
        """One rank reduces nothing, so it needs no buffer."""
        return Footprint(0)

    def build(self, parts: Parts) -> Trainable:
        """The shared step without any reduction."""
        from pipeline.parallel.step import Stepper

        return Stepper(parts.prepare())
