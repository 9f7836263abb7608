"""The interface of a strategy (no torch at import).

A strategy is one file in this folder: a frozen dataclass of its knobs that derives from `Strategy`.
The file's stem is its name; `pipeline.strategies.load` and the parity tests find it by themselves.
"""

from __future__ import annotations

import importlib.util
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from pipeline.errors import UnsupportedError
from pipeline.parallel.mesh import DATA, Layout
from pipeline.parallel.types import Parts, Trainable
from pipeline.study.spec import RunSpec, WorldSpec


@dataclass(frozen=True)
class Footprint:
    """What a strategy adds to the memory of one rank.

    `buffer_bytes` are those of its reduction. `holds_gradients`: gradients stay allocated from step
    to step. `has_optimiser_state`: this rank keeps the optimiser's slots.
    """

    buffer_bytes: int
    holds_gradients: bool = False
    has_optimiser_state: bool = True


@dataclass(frozen=True)
class Strategy(ABC):
    """A way to spread one optimisation step over ranks; its fields are its knobs."""

    requires: ClassVar[tuple[str, ...]] = ()
    """Packages that `build` imports; where one is missing the cell is `unsupported`.

    Their versions are recorded.
    """

    install: ClassVar[str] = "run `make setup`"
    """How to get what is missing, as `doctor` says it."""

    modules: ClassVar[tuple[str, ...]] = ()
    """Modules that `build` imports and that start no thread; loaded before ranks are forked."""

    environment: ClassVar[tuple[str, ...]] = ()
    """Prefixes of environment variables that shape a run of this strategy; they are recorded."""

    lost_peer: ClassVar[tuple[str, ...]] = ()
    """What its backend says, in lower case, on a rank whose peer is gone."""

    launcher: ClassVar[str] = "torchrun"

    def layout(self, world: WorldSpec) -> Layout:
        """One process per device, all on the data axis, unless overridden."""
        return Layout(
            axes=((DATA, world.size),),
            processes_per_node=world.ranks_per_node,
            device=world.device,
            backend=world.backend,
        )

    def footprint(self, spec: RunSpec, layout: Layout, rank: int, gradients: int) -> Footprint:
        """Memory that this strategy adds on `rank`, where the gradients are `gradients` bytes.

        One more copy of the gradients, unless overridden. Arithmetic: no torch is loaded.
        """
        return Footprint(gradients)

    def check(self) -> None:
        """Raise UnsupportedError, with the reason, where this strategy cannot run."""
        for package in self.requires:
            if importlib.util.find_spec(package) is None:
                raise UnsupportedError(f"package {package} is not installed; run `make setup`")

    @abstractmethod
    def build(self, parts: Parts) -> Trainable:
        """Join the other ranks and wrap model and optimiser; backends are imported here."""
