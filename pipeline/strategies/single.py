"""Single device: one process, no communication - the run that every other is held against."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipeline.errors import StudyError
from pipeline.strategies.base import Layout, Parts, Strategy, Trainable

if TYPE_CHECKING:
    from pipeline.spec import WorldSpec


@dataclass(frozen=True)
class Single(Strategy):
    """The study's 'Single GPU'."""

    def layout(self, world: WorldSpec) -> Layout:
        """One rank; raises StudyError for a larger world."""
        if world.size != 1:
            raise StudyError(
                f"strategy single runs on 1 rank, given {world.nodes} nodes x "
                f"{world.ranks_per_node} ranks; set the cell's nodes to [1] and ranks_per_node to 1"
            )
        return super().layout(world)

    def build(self, parts: Parts) -> Trainable:
        """The shared step without any reduction."""
        from pipeline.strategies._step import Stepper

        return Stepper(parts.prepare())
