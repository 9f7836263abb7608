"""The interface of a strategy (no torch at import).

A strategy is a frozen dataclass of its knobs that derives from `Strategy`: one file in this folder,
or `plan.py` in a folder of its own. The stem of either is its name.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar

from pipeline import models
from pipeline.cost.traffic import ALL_REDUCE, HALVES, Traffic, ring
from pipeline.errors import MissingError, UnsupportedError
from pipeline.parallel.mesh import BUCKET_BYTES, DATA, PIPELINE, TENSOR, Degrees, Layout
from pipeline.parallel.types import Parts, Trainable
from pipeline.study.spec import ModelSpec, RunSpec, WorldSpec

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import Store  # type: ignore[attr-defined]

    from pipeline.cost.sharding import Cuts, Prices


@dataclass(frozen=True)
class Footprint:
    """Memory of one rank, as a strategy changes it.

    `buffer_bytes` are those of its reduction. `holds_gradients`: gradients stay allocated from step
    to step. The shares (0 to 1) are what the rank keeps of each, `copy_share` of the narrow copies
    that autocast makes of the weights, `held_share` of gradients that wait for more micro-batches,
    `master_share` of fp32 masters of narrow weights, None for `weight_share`;
    `gathered_bytes` are weights beyond its share, and masks, while the passes run. `block_share` is
    of the gradients of activations in one block, and of what it keeps while it is recomputed; then
    `input_share` is kept of the inputs of all blocks.
    """

    buffer_bytes: int
    holds_gradients: bool = False
    weight_share: float = 1.0
    master_share: float | None = None
    gradient_share: float = 1.0
    optimiser_share: float = 1.0
    activation_share: float = 1.0
    copy_share: float = 1.0
    logit_share: float = 1.0
    gathered_bytes: int = 0
    held_share: float = 1.0
    input_share: float = 1.0
    block_share: float = 1.0

    def holding(self, share: float, owned: float) -> Footprint:
        """The same on a rank that holds a share of the weights, and updates another of them."""
        return replace(
            self,
            weight_share=share,
            gradient_share=share,
            held_share=share,
            optimiser_share=owned,
            master_share=owned,
        )


PLAIN = ("fp32", "tf32", "bf16")
"""Precisions whose gradients are fp32 and not scaled."""

Choices = tuple[tuple[str, tuple[Any, ...]], ...]
"""Names of knobs, each with its values."""

SYMBOLS = {
    "n": "ranks of the axis",
    "G": "bytes of a rank's gradients as they travel",
    "W": "bytes of the weights that these ranks hold together, as the passes have them",
    "B": "bytes of those of the blocks",
    "P": "bytes of those with more than 100,000 numbers",
    "L": "blocks of a rank",
    "T": "tokens of the sequences that a rank reads in a step",
    "A": "bytes of an activation of these tokens, T x width x 4 in fp32",
    "m": "micro-batches",
    "R": "bytes of the gradients of layer norms, biases and positions, which no axis cuts",
    "s": "ranks of the axis data, over which ZeRO cuts",
    "k": "experts that a token goes to",
    "E": "bytes of the gradients of a rank's experts",
    "S": "bytes of two numbers of each expert and sequence, for the loss of a router",
}
"""Symbols of the formulas of `Strategy.sends`."""


def along(
    layout: Layout, axis: str, formula: str, payload: float, messages: float = 1.0,
    *, overlap: bool = False, halves: bool = False,
) -> Sequence[Traffic]:  # fmt: skip
    """(n-1)/n of `payload` on the n ranks of an axis; nothing where it has one rank alone.

    `halves`: by reduce-scatters and all-gathers, not all-reduces.
    """
    ranks = layout.size(axis)
    if ranks < 2:
        return ()
    kind = HALVES if halves else ALL_REDUCE
    return (Traffic(axis, formula, ring(payload, ranks), messages, kind, overlap),)


def bucket_bytes(
    model: ModelSpec, gradients: float, cap: float = BUCKET_BYTES,
    *, layers: float = 1.0, ends: float = 1.0,
) -> int:  # fmt: skip
    """Lower bound, in bytes, of the largest bucket of a rank that reduces `gradients` bytes.

    No weight is divided, so one that is larger than `cap`, such as an embedding, overfills it. What
    lies in the bucket before that one is not counted, which is less than `cap`.
    `layers`, `ends`: the share that a rank has of the largest weight of the layers, and outside.
    """
    of_layers, outside = models.largest_weights(model)
    largest = models.FP32 * max(layers * of_layers, ends * outside)
    return int(min(gradients, max(cap, largest)))


@dataclass(frozen=True)
class Strategy(ABC):
    """A way to spread one optimisation step over ranks; its fields are its knobs."""

    requires: ClassVar[tuple[str, ...]] = ()
    """Packages that `build` imports, versions recorded; without one a cell is `unsupported`."""

    needs_of_torch: ClassVar[tuple[str, ...]] = ()
    """Names that `build` uses and that earlier releases of torch lack, `module:name`, or a
    parameter, `module:Class.method(parameter)`; without one the cell is `unsupported`."""

    install: ClassVar[str] = "run `make setup`"
    """Command that installs what is missing, for `doctor`."""

    modules: ClassVar[tuple[str, ...]] = ()
    """Modules that `build` imports and that start no thread; loaded before ranks are forked."""

    lost_peer: ClassVar[tuple[str, ...]] = ()
    """Words of its backend's error, in lower case, on a rank whose peer is gone."""

    changes_the_step: ClassVar[tuple[str, ...]] = ()
    """Knobs that change the optimisation step where they are off their defaults: cells that differ
    in one did unequal work, which a study must declare."""

    algorithm: ClassVar[str] = ""
    """Its name where it takes another step than `single` whatever its knobs: all work is unequal,
    and parity holds it against that algorithm, written out in one process."""

    lossy_wire: ClassVar[tuple[tuple[str, str], ...]] = ()
    """Knobs in `changes_the_step` with a value that only makes gradients lose digits on their way:
    parity holds such a cell against one without them, in a band of its own."""

    weighs: ClassVar[bool] = True
    """True where it takes batches with weights and segments, as the shared step does."""

    precisions: ClassVar[tuple[str, ...]] = ()
    """Precisions that it can train in; none named means all. The others are `unsupported`."""

    choices: ClassVar[Choices] = ()
    """Knobs that have few values, with these; all others are refused."""

    ranges: ClassVar[tuple[tuple[str, float, float], ...]] = ()
    """Knobs that are numbers with the least and the largest that a run can have; of others each
    number from 0 to `strategies.MAX_KNOB` is one."""

    variants: ClassVar[tuple[Mapping[str, Any], ...]] = ()
    """Settings of its knobs, besides the defaults, that parity holds to the same step."""

    whole_forward: ClassVar[bool] = False
    """True where each forward pass is that of the whole model and waits for no other rank: then
    its CPU seconds tell how fast the machine is (`pipeline.launch.emulated.yardstick`)."""

    by_operator: ClassVar[bool] = False
    """True where its knobs cut single operators, which `cut_operators` searches for; `knobs` are
    then of a layout in which every rank of a tensor axis has all of them whole."""

    cuts_experts: ClassVar[bool] = False
    """True where its `knobs` are of layouts that cut experts, and those of all others are not."""

    published: ClassVar[bool] = True
    """False where no published step was made so, and the cost model has none of it."""

    use: ClassVar[str] = ""
    """Reason to choose it: a clause for the table of strategies."""

    @property
    def example(self) -> str:
        """Name in `models.examples` of a small model that it trains; none for the first of them."""
        return ""

    @property
    def period(self) -> int:
        """Steps after which they repeat: what one takes and sends is a mean over so many."""
        return 1

    @property
    def unlike(self) -> tuple[int, str]:
        """Number of steps at the beginning that must not be timed, and what they do: a clause."""
        return 0, ""

    @property
    def resumes(self) -> bool:
        """False where it keeps a state between steps that no checkpoint holds."""
        return True

    @property
    def sends_unstated(self) -> str:
        """Reason for having no formula of what it sends; `sends` is then empty."""
        return ""

    @property
    def all_reduces_by(self) -> str:
        """The library that reduces its gradients, a comma, its settings; "" for torch's groups."""
        return ""

    def all_reduce(
        self, layout: Layout, store: Store
    ) -> AbstractContextManager[Callable[[Tensor], None]]:
        """That library's all-reduce, for `calibrate`: ranks join at `store`, and leave."""
        raise NotImplementedError

    @property
    def cuts_weights(self) -> bool:
        """True where `build` cuts a model without memory, then calls `Parts.materialise`."""
        return False

    @property
    def split(self) -> str:
        """Parts of the training that are cut over ranks, besides the batch."""
        return "nothing"

    def layout(self, world: WorldSpec) -> Layout:
        """One process per device, all on the data axis, unless overridden."""
        return Layout.of(world, (DATA, world.size))

    def footprint(self, spec: RunSpec, layout: Layout, rank: int, gradients: int) -> Footprint:
        """Memory that this strategy adds on `rank`, where the gradients are `gradients` bytes.

        One more copy of the gradients, unless overridden. Arithmetic: no torch is loaded.
        """
        return Footprint(gradients)

    def sends(self, spec: RunSpec, layout: Layout, rank: int, gradients: int) -> Sequence[Traffic]:
        """Bytes that `rank` sends in a step along each axis, for gradients that travel as so many.

        One all-reduce of the gradients over the data axis, unless overridden; what it adds up in
        single numbers is left out. Arithmetic: no torch is loaded. Symbols: see `SYMBOLS`.
        """
        return along(layout, DATA, "2(n-1)/n G", 2 * gradients)

    def one_graph(self, spec: RunSpec) -> bool:
        """True where `compile` makes one graph of the model; elsewhere one of each block.

        It has to run whole on every rank, and nothing of ours may reduce in its backward pass.
        """
        return False

    def pieces(self, spec: RunSpec, layout: Layout) -> int:
        """Micro-batches of a step on a rank: those of the study, unless overridden."""
        return spec.workload.accumulation_steps

    def knobs(self, degrees: Degrees) -> Mapping[str, Any] | None:
        """Knobs with which it has this layout, None where it has none; `plan --auto` asks."""
        return None

    def cut_operators(
        self, model: ModelSpec, sequences: int, prices: Prices, most: float = math.inf
    ) -> Cuts | None:
        """The best cuts of a block's operators over so many ranks; where it is `by_operator`.

        Of micro-batches of so many sequences. A rank keeps at most the share `most` of the
        parameters; None where no cuts keep so few.
        """
        return None

    def degrees(self, spec: RunSpec, layout: Layout) -> Degrees | None:
        """The layout as the cost model has it; None where it has none, as unless `published`."""
        if not self.published:
            return None
        data, tensor, pipeline = map(layout.size, (DATA, TENSOR, PIPELINE))
        return Degrees(data, tensor, pipeline, microbatches=self.pieces(spec, layout))

    def idle_share(self, spec: RunSpec) -> float | None:
        """Share of a step that equal ranks wait by design, with free messages; None for none."""
        return None

    def check(self) -> None:
        """Raise UnsupportedError, where a package or part of torch is missing."""
        for package in self.requires:
            if importlib.util.find_spec(package) is None:
                raise MissingError(f"package {package} is not installed; run `make setup`")
        for need in self.needs_of_torch:
            if not is_in_torch(need):
                version = importlib.metadata.version("torch")
                raise UnsupportedError(
                    f"torch {version} has no {need.replace(':', '.')}; use the torch of the lock "
                    "(`make setup`) or the image `current` (docs/containers.md)"
                )

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


def is_in_torch(need: str) -> bool:
    """True where torch has this one of `Strategy.needs_of_torch`."""
    module, _, path = need.partition(":")
    path, _, parameter = path.rstrip(")").partition("(")
    try:
        found: Any = attrgetter(path)(importlib.import_module(module))
    except (ImportError, AttributeError):
        return False
    return not parameter or parameter in inspect.signature(found).parameters
