"""The interface of a strategy (no torch at import).

A strategy is one file in this folder: a frozen dataclass of its knobs that derives from `Strategy`.
The file's stem is its name; `pipeline.strategies.load` and the parity tests find it by themselves.
"""

from __future__ import annotations

import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from pipeline.errors import UnsupportedError
from pipeline.parallel.mesh import DATA, Layout
from pipeline.parallel.types import Parts, Trainable
from pipeline.study.spec import RunSpec, WorldSpec


@dataclass(frozen=True)
class Footprint:
    """What a strategy makes of the memory of one rank.

    `buffer_bytes` are those of its reduction. `holds_gradients`: gradients stay allocated from step
    to step. The shares are what the rank keeps of each, `held_share` of gradients that
    wait for more micro-batches; `gathered_bytes` are weights beyond its share while the passes run.
    """

    buffer_bytes: int
    holds_gradients: bool = False
    weight_share: float = 1.0
    gradient_share: float = 1.0
    optimiser_share: float = 1.0
    activation_share: float = 1.0
    logit_share: float = 1.0
    gathered_bytes: int = 0
    held_share: float = 1.0


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

    precisions: ClassVar[tuple[str, ...]] = ()
    """Precisions that it can train in; none named means all. The others are `unsupported`."""

    variants: ClassVar[tuple[Mapping[str, Any], ...]] = ()
    """Settings of its knobs, besides the defaults, with which it must take the same step."""

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

    def idle_share(self, spec: RunSpec) -> float | None:
        """Share of a step's time in which a rank waits by design, None where none does.

        A formula, for equal ranks and free communication.
        """
        return None

    def check(self) -> None:
        """Raise UnsupportedError, with the reason, where this strategy cannot run."""
        for package in self.requires:
            if importlib.util.find_spec(package) is None:
                raise UnsupportedError(f"package {package} is not installed; run `make setup`")

    def check_spec(self, spec: RunSpec) -> None:
        """Raise StudyError where the run's world or model cannot be laid out so."""
        self.layout(spec.world)

    def check_precision(self, name: str) -> None:
        """Raise UnsupportedError for a precision in which this strategy cannot train."""
        if self.precisions and name not in self.precisions:
            raise UnsupportedError(
                f"strategy {type(self).__name__.lower()} does not train in {name}; use one of "
                + ", ".join(self.precisions)
            )

    @abstractmethod
    def build(self, parts: Parts) -> Trainable:
        """Join the other ranks and wrap model and optimiser; backends are imported here."""
