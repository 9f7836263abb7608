"""Types between the training loop and a strategy (no torch at import)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

from pipeline.errors import UnsupportedError, refuse
from pipeline.parallel.mesh import Layout

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

    from pipeline.parallel.counted import Counted
    from pipeline.precision import PrecisionInfo
    from pipeline.precision.native import Precision

WEIGHTS, SLOTS = "weights", "optimiser"
"""With which the names of a state begin, see `weight_name` and `slot_name`."""


class Batch(NamedTuple):
    """Sequences on the rank's device: what `corpus.objectives.Arrays` has.

    What a model gets are weights (sequences, context), of which each loss has its own: they are
    shares of the weight that it has in the global batch over its ranks (`Stepper.weighed`).
    """

    inputs: Tensor
    targets: Tensor
    weights: Tensor | None = None
    segments: Tensor | None = None

    @property
    def given(self) -> tuple[Tensor | None, ...]:
        """Arguments of a model's forward pass, up to the last that there is."""
        return self[: 4 if self.segments is not None else 3 if self.weights is not None else 2]


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
class Piece:
    """A box of one tensor of a state: `numbers` on the host, from `offsets` on along each dim.

    `name` is one of `weight_name` or `slot_name`, `shape` that of the whole tensor.
    """

    name: str
    shape: tuple[int, ...]
    offsets: tuple[int, ...]
    numbers: Tensor


@dataclass(frozen=True)
class Shards:
    """One rank's share of a checkpoint; the pieces of all ranks cover each tensor once.

    `scalars` are the loss scaler's numbers, the same on every rank.
    """

    pieces: Sequence[Piece]
    scalars: Mapping[str, float]


@dataclass(frozen=True)
class Whole:
    """Shape of a whole tensor of a checkpoint, and torch's name of its type, as `float32`."""

    shape: tuple[int, ...]
    dtype: str


class SavedState(Protocol):
    """A checkpoint, of which each rank reads what it holds, whatever layout has written it."""

    @property
    def scalars(self) -> Mapping[str, float]:
        """The loss scaler's numbers."""

    @property
    def wholes(self) -> Mapping[str, Whole]:
        """All tensors, by name."""

    def read(self, name: str, offsets: Sequence[int], shape: Sequence[int]) -> Tensor:
        """A box of a tensor, on the host; raises KeyError for a name that is not in `wholes`."""

    def close(self) -> None:
        """Let go of the files; a later `read` opens them again."""


def weight_name(parameter: str) -> str:
    """Name of a weight in a state: `weights/<parameter>`."""
    return f"{WEIGHTS}/{parameter}"


def slot_name(parameter: str, slot: str) -> str:
    """Name in a state of a slot of the optimiser, as `exp_avg`: `optimiser/<parameter>/<slot>`."""
    return f"{SLOTS}/{parameter}/{slot}"


class Phases:
    """The listener of a step, told of each phase; in a timed run, as here, nobody listens.

    The names are `MARKED` and `REST` of `pipeline.study.profiling`. A strategy without marks works
    too: its step is then communication, which `collectives` marks, and `rest`.
    """

    counted: Counted | None = None
    """Counts what no recorder of torch's sees, in a profiled run."""

    def begin(self, phase: str, *, after_gradients: str | None = None) -> None:
        """From now on the step is in `phase`, and once the last gradient is there in the other.

        The latter is for a backward pass that also reduces; its model has to be watched.
        """

    def during(self, phase: str) -> AbstractContextManager[None]:
        """In `phase` for as long as the context lasts; a context within another does nothing."""
        return nullcontext()

    def passing(self, kind: str, stage: int, microbatch: int) -> None:
        """From the last mark on a micro-batch passes a stage of a pipeline, until the next does.

        `kind` is `FORWARD`, `BACKWARD` or `WEIGHTS` of `pipeline.study.profiling`.
        """

    def watch(self, model: nn.Module) -> None:
        """Notice each gradient of this rank when it is ready, before a backward pass sends it."""

    def untimed(self) -> None:
        """Leave all to `rest`: where collectives overlap no mark can see what they take."""


NOT_PROFILED = Phases()


@dataclass(frozen=True)
class Defects:
    """Defects of the first code of Bai 2022, whose effect study `bai2022-as-published` measures.

    `empty_cache`: return CUDA's cached memory after every step. `optimiser_steps`: how often the
    optimiser steps on the same gradients. `clip_before_synchronise`: clip each rank's own gradients
    while they may still be on their way.
    """

    empty_cache: bool = False
    optimiser_steps: int = 1
    clip_before_synchronise: bool = False

    def check(self, device: str, precision: PrecisionInfo) -> None:
        """Raise UnsupportedError where a defect cannot be shown."""
        # torch's GradScaler steps once for each unscaling.
        scales = precision.loss_scaling and precision.library == "torch"
        refuse(UnsupportedError, "", [
            (self.optimiser_steps > 1 and scales,
             f"optimiser_steps {self.optimiser_steps} cannot run with torch's loss scaling "
             f"({precision.name}); use fp32, bf16 or apex_o1"),
            (self.empty_cache and device != "cuda",
             f"empty_cache needs a CUDA device, given {device}; remove the option"),
        ])  # fmt: skip


NO_DEFECTS = Defects()


def already() -> None:
    """Nothing is left to do: the model has its weights, or a backward pass has reduced."""


@dataclass(frozen=True)
class Parts:
    """The parts of a training that a strategy spreads over ranks.

    `model` holds the same whole weights on every rank, or, for a strategy that `cuts_weights`, none
    yet: it cuts the model, then calls `materialise`, which gives each parameter memory and this
    rank's part of its initial value. `make_optimiser` makes the optimiser of these parameters; a
    strategy that cuts the weights calls it on what is left of them. `max_grad_norm` is the L2 norm
    to which the global mean gradient is clipped.
    """

    model: nn.Module
    make_optimiser: Callable[[Iterable[nn.Parameter]], Optimizer]
    layout: Layout
    precision: Precision
    max_grad_norm: float
    phases: Phases = NOT_PROFILED
    materialise: Callable[[], None] = already

    def prepare(self, *, narrow: bool = True) -> Prepared:
        """Make the optimiser of the model; the precision narrows the weights, unless FSDP2 does."""
        self.materialise()
        optimiser = self.make_optimiser(self.model.parameters())
        return self.prepared(self.precision.prepare(self.model, optimiser) if narrow else optimiser)

    def prepared(self, optimiser: Optimizer) -> Prepared:
        """The parts with this optimiser."""
        return Prepared(**vars(self), optimiser=optimiser)


@dataclass(frozen=True)
class Prepared(Parts):
    """Parts whose optimiser has been made, as the shared step takes them."""

    optimiser: Optimizer = field(kw_only=True)


class Trainable(Protocol):
    """All that the training loop sees of a built strategy; every method is collective.

    The loop sets the learning rate of each step in `optimiser.param_groups`.
    """

    optimiser: Optimizer

    def barrier(self) -> None:
        """Return when every rank has come here; the clock starts after it."""

    def step(self, microbatches: Sequence[Batch]) -> None:
        """One optimiser step over this rank's micro-batches of the global batch. It is timed."""

    def report(self) -> StepResult:
        """Loss and norm of the last step, the same on every rank. It comes after the clock."""

    def squares(self) -> Mapping[str, float]:
        """This rank's share of the sum of squares of each parameter's last gradient, as clipped."""

    def agree(self, good: bool) -> bool:
        """True where `good` is true on every rank; outside of the clock."""

    def shards(self) -> Shards:
        """This rank's pieces of the state; of ranks that hold the same, the first alone has it."""

    def load(self, state: SavedState) -> None:
        """Continue from `state`, of which every rank reads what it holds."""

    def close(self) -> str:
        """Leave the process group; hash of the whole weights, the same on ranks of a sound run."""
