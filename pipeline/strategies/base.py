"""The interface of a strategy, and what the training loop sees of it (no torch at import).

A strategy is one file in this folder: a frozen dataclass of its knobs that derives from `Strategy`.
The file's stem is its name; `pipeline.strategies.load` and the parity tests find it by themselves.
"""

from __future__ import annotations

import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from pipeline.errors import StudyError, UnsupportedError

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

    from pipeline.precision import Precision
    from pipeline.spec import WorldSpec

Batch = tuple["Tensor", "Tensor"]
"""Token ids and their targets, each (sequences, context), int64, on the rank's device."""


@dataclass(frozen=True)
class Layout:
    """How ranks, devices and the batch lie: pure arithmetic, the same on every rank.

    `num_processes` ranks are started, `processes_per_node` on each node; each owns
    `devices_per_process` devices. The global batch is cut into `data_parallel` equal slices.
    """

    num_processes: int
    processes_per_node: int
    devices_per_process: int
    data_parallel: int
    device: str
    backend: str

    def batch_slice(self, rank: int, global_batch: int) -> tuple[int, int]:
        """First and past-the-last sequence of the global batch that `rank` reads."""
        if global_batch % self.data_parallel:
            raise StudyError(
                f"global batch {global_batch} is not a multiple of {self.data_parallel} "
                "data-parallel ranks; set workload.global_batch to a multiple of it"
            )
        share = global_batch // self.data_parallel
        start = (rank % self.data_parallel) * share
        return start, start + share

    def processes_per_machine(self, world: WorldSpec) -> int:
        """Ranks that share one machine: those of all its nodes."""
        return self.num_processes // world.num_machines

    def gpus_per_machine(self, world: WorldSpec) -> int:
        """GPUs that the ranks on one machine take, none on a CPU."""
        if world.device != "cuda":
            return 0
        return self.processes_per_machine(world) * self.devices_per_process

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types, for the record."""
        return asdict(self)


@dataclass(frozen=True)
class StepResult:
    """One optimiser step over the global batch.

    `loss` is its mean in nats per token, `grad_norm` the L2 norm of its mean gradient before
    clipping, `tokens` their number.
    """

    loss: float
    grad_norm: float
    tokens: int


@dataclass(frozen=True)
class TrainState:
    """Everything a run needs to go on: tensors by parameter name, and plain numbers.

    `optimiser` maps `<parameter>.<slot>` to a tensor; `scalars` holds the loss scaler's numbers.
    """

    weights: Mapping[str, Tensor]
    optimiser: Mapping[str, Tensor]
    scalars: Mapping[str, float]


class Phases:
    """What a step tells of what it is doing; in a timed run, as here, nobody listens.

    The names are `MARKED` and `REST` of `pipeline.profiling`. A strategy without marks works too:
    its whole step is then `rest`.
    """

    def begin(self, phase: str, *, after_gradients: str | None = None) -> None:
        """From now on the step is in `phase`, and once the last gradient is there in the other.

        The latter is for a backward pass that goes on to reduce; its model has to be watched.
        """

    def during(self, phase: str) -> AbstractContextManager[None]:
        """In `phase` for as long as the context lasts, then again in the one before."""
        return nullcontext()

    def watch(self, model: nn.Module) -> None:
        """Notice each gradient of this rank when it is ready, before a backward pass sends it."""


NOT_PROFILED = Phases()


@dataclass(frozen=True)
class Parts:
    """What a strategy gets to spread over ranks.

    `max_grad_norm` is the L2 norm to which the global mean gradient is clipped.
    """

    model: nn.Module
    optimiser: Optimizer
    layout: Layout
    precision: Precision
    max_grad_norm: float
    phases: Phases = NOT_PROFILED

    def prepare(self) -> Parts:
        """Let the precision narrow the weights and wrap the optimiser."""
        return replace(self, optimiser=self.precision.prepare(self.model, self.optimiser))


class Trainable(Protocol):
    """All that the training loop sees of a built strategy; every method is collective.

    The loop sets the learning rate of each step in `optimiser.param_groups`.
    """

    optimiser: Optimizer

    def step(self, microbatches: Sequence[Batch]) -> StepResult:
        """One optimiser step over this rank's micro-batches of the global batch."""

    def state(self) -> TrainState | None:
        """The state after the last step, on rank 0; None on the others."""

    def load(self, state: TrainState) -> None:
        """Continue from `state`, which every rank passes."""

    def close(self) -> None:
        """Leave the same final weights in the model on every rank, and the process group."""


@dataclass(frozen=True)
class Strategy(ABC):
    """A way to spread one optimisation step over ranks; its fields are its knobs."""

    requires: ClassVar[tuple[str, ...]] = ()
    """Packages that `build` imports; where one is missing the cell is `unsupported`."""

    launcher: ClassVar[str] = "torchrun"

    def layout(self, world: WorldSpec) -> Layout:
        """One process per device, the batch cut into one slice per rank, unless overridden."""
        return Layout(
            num_processes=world.size,
            processes_per_node=world.ranks_per_node,
            devices_per_process=1,
            data_parallel=world.size,
            device=world.device,
            backend=world.backend,
        )

    def check(self) -> None:
        """Raise UnsupportedError, with the reason, where this strategy cannot run."""
        for package in self.requires:
            if importlib.util.find_spec(package) is None:
                raise UnsupportedError(f"package {package} is not installed; run `make setup`")

    @abstractmethod
    def build(self, parts: Parts) -> Trainable:
        """Join the other ranks and wrap model and optimiser; backends are imported here."""
