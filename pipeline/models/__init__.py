"""Model families, one folder each; none of them knows about ranks.

Each parameter gets its initial values in place and whole, by `torch.nn.init`, after it has been
assigned: ranks that cut the weights repeat these writes, see `build.py`.

A family's `arithmetic.py` is a `Family`. Its `build` makes an `nn.Module` whose
`forward(inputs, targets)` returns the mean loss and whose `blocks` are the layers that repeat;
given weights of the targets as a third argument, it returns the weighted sum. `loss(logits,
targets)`, or with weights, is the end of it. `wrap_attention(around)` has the blocks call
`around(attend, *given)` in place of `attend(*given)`, which makes the output of attention of query,
key and value. `tensor_cuts` says how a tensor axis cuts the model, `stage_cuts` and
`stage(layers, is_first=, is_last=)` how a pipeline does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast, runtime_checkable

from pipeline.errors import StudyError
from pipeline.study.spec import ModelSpec, ObjectiveSpec

if TYPE_CHECKING:
    from torch import nn

FOLDER = Path(__file__).parent


@runtime_checkable
class Family(Protocol):
    """Sizes of a family's models, without torch, and how one is built.

    What a model has not raises StudyError with the reason.
    """

    def examples(self) -> Mapping[str, ModelSpec]:
        """Small models by name, which the parity suite trains."""

    def label(self, model: ModelSpec) -> tuple[str, str]:
        """The model's name in a paper, and the key of its source in the bibliography."""

    def objectives(self, model: ModelSpec) -> tuple[str, ...]:
        """Kinds of the objectives that train the model; the table of strategies takes the first."""

    def check(self, model: ModelSpec, objective: ObjectiveSpec | None) -> None:
        """Raise StudyError for keys that contradict one another, before anything is built."""

    def build(self, model: ModelSpec) -> nn.Module:
        """A fresh model from torch's current random state."""

    def num_parameters(self, model: ModelSpec) -> int:
        """Trainable parameters, those that two layers share counted once."""

    def experts(self, model: ModelSpec) -> Experts | None:
        """Experts of a mixture; None for a dense model."""

    def parameter_shapes(self, model: ModelSpec) -> Mapping[str, tuple[int, ...]]:
        """Shape of every parameter by its name, tied ones once."""

    def file_names(self, model: ModelSpec) -> FileNames:
        """Names of the parameters in files of starting weights; StudyError where it reads none."""

    def boundary_shapes(self, model: ModelSpec) -> Mapping[str, tuple[int | None, ...]]:
        """Shape of every module's output by its name; None is the number of sequences."""

    def layer_parameters(self, model: ModelSpec) -> int:
        """Parameters of one of the layers that repeat."""

    def ends(self, model: ModelSpec) -> Ends:
        """Parameters outside of the layers that repeat; StudyError where it has no stages."""

    def axis_cuts(self, model: ModelSpec) -> AxisCuts:
        """Numbers for a tensor axis; StudyError where it cannot be cut."""

    def product_weights(self, model: ModelSpec) -> int:
        """Weights that are used in matrix products; the output layer counts once."""

    def flops_per_token(self, model: ModelSpec) -> float:
        """Model FLOPs of one forward and backward pass, per token."""

    def recomputed_flops_per_token(self, model: ModelSpec, what: bool | str = True) -> float:
        """FLOPs per token that recomputation adds to `flops_per_token`: no model FLOPs.

        Of `what` see `WorkloadSpec.recompute`; StudyError where attention cannot be told apart.
        """

    def kept(self, model: ModelSpec, sequences: int, widths: Widths) -> Kept:
        """Bytes of activations of a pass over so many sequences."""

    def loaded_bytes(self) -> int:
        """Resident bytes on a CPU of the modules that a rank imports to build one of its models."""

    def shape(self, model: ModelSpec) -> Shape:
        """Its layers as the cost model of GPUs has them; StudyError where it does not know them."""

    def operators(
        self, model: ModelSpec, sequences: int, ranks: int
    ) -> tuple[Counts, Counts, Counts]:
        """Operators of the embedding, of one block, and of the output layer with the loss.

        Of a micro-batch on one of `ranks` tensor ranks; with them `calibrate` predicts a step.
        """

    def products(self, model: ModelSpec) -> Sequence[Product]:
        """Linear layers of a block, in their order; StudyError where they are not known."""


@cache
def names() -> list[str]:
    """Names of all families."""
    return sorted(path.parent.name for path in FOLDER.glob("*/arithmetic.py"))


@cache
def _family(name: str) -> Family:
    return cast(Family, import_module(f"{__name__}.{name}.arithmetic"))


def family(model: ModelSpec) -> Family:
    """The model's family, of which alone the module is imported; StudyError for an unknown one."""
    if model.family not in names():
        raise StudyError(
            f"model family {model.family[:80]!r} has no folder in pipeline/models; use one of "
            + ", ".join(names())
        )
    return _family(model.family)


def examples() -> dict[str, ModelSpec]:
    """Small models of all families by name, which the parity suite trains."""
    every = map(_family, names())
    return {name: model for own in every for name, model in own.examples().items()}


def example() -> ModelSpec:
    """The first of `examples` of which all is known that strategies ask, so that each trains it."""
    for model in examples().values():
        sizes = family(model)
        with suppress(StudyError):
            for known in (sizes.ends, sizes.axis_cuts, sizes.boundary_shapes):
                known(model)
            return model
    raise StudyError("no family in pipeline/models has an example that every strategy trains")


def label(name: str) -> str:
    """Name in a text of a family or a class of models, both as `examples` have them."""
    model = examples().get(name)
    return name if model is None else family(model).label(model)[0]


def check(model: ModelSpec, objective: ObjectiveSpec | None) -> None:
    """Raise StudyError for what the model's family refuses, or an objective for another head."""
    family(model).check(model, objective)
    kind = "causal" if objective is None else objective.kind
    if kind not in (kinds := family(model).objectives(model)):
        others = [name for name, one in examples().items() if kind in family(one).objectives(one)]
        advice = f", or a model such as {' or '.join(others[:2])}" if others else ""
        raise StudyError(
            f"objective {kind} does not train {model.architecture or model.family}; use "
            f"{' or '.join(kinds)}{advice}"
        )


def num_parameters(model: ModelSpec) -> int:
    """Trainable parameters, those that two layers share counted once."""
    return family(model).num_parameters(model)


@cache
def largest_weights(model: ModelSpec) -> tuple[int, int]:
    """Numbers in the largest parameter of the layers that repeat, and in that outside of them."""
    of_layers = outside = 0
    for name, shape in family(model).parameter_shapes(model).items():
        if any(part.isdigit() for part in name.split(".")):  # layers that repeat are numbered
            of_layers = max(of_layers, prod(shape))
        else:
            outside = max(outside, prod(shape))
    return of_layers, outside


def experts(model: ModelSpec) -> Experts | None:
    """Experts of a mixture; None for a dense model."""
    return family(model).experts(model)


def active_parameters(model: ModelSpec) -> int:
    """Trainable parameters that one token uses: all, but of a mixture of experts."""
    whole, mixture = num_parameters(model), experts(model)
    if mixture is None:
        return whole
    return whole - mixture.parameters * (mixture.count - mixture.chosen) // mixture.count


def axis_cuts(model: ModelSpec) -> AxisCuts:
    """Numbers of a model to be cut over a tensor axis; StudyError where it cannot be cut."""
    return family(model).axis_cuts(model)


def flops_per_token(model: ModelSpec) -> float:
    """Model FLOPs of one forward and backward pass, per token."""
    return family(model).flops_per_token(model)


def logit_bytes(model: ModelSpec, sequences: int) -> int:
    """The loss at its peak: log-probabilities and two gradients in fp32, and the token ids."""
    tokens = sequences * model.context
    return tokens * (3 * FP32 * model.vocab_rows + 2 * INT64)


def tensor_shapes(model: ModelSpec) -> dict[str, tuple[int | None, ...]]:
    """Shape of every parameter and of every module's output; None is the number of sequences."""
    sizes = family(model)
    return {**sizes.parameter_shapes(model), **sizes.boundary_shapes(model)}


class Ends(NamedTuple):
    """Numbers of parameters outside of the layers that repeat, or of those among them that are cut.

    `shared` ones, of a tied embedding, are `before` the layers and `after` them.
    """

    before: int
    after: int
    shared: int

    def held(self, first: bool, last: bool) -> int:
        """Those of a rank with the `first` stage of a model, the `last`, both or none."""
        return self.before * first + self.after * last - self.shared * (first and last)


@dataclass(frozen=True)
class Experts:
    """Number of experts of a layer, how many a token goes to, and parameters of all of them.

    These are the first dim of each of the parameters, in the modules that a model has as `experts`.
    `balance` is the factor of the router's loss, which is one of all layers together.
    """

    count: int
    chosen: int
    parameters: int
    balance: float


class Product(NamedTuple):
    """A linear layer of a block, by the end of its name.

    `given` is the module whose output it takes, which has all features; of one that names none the
    input is made of the output of the layer before it: feature by feature where the numbers of
    features are the same, else head by head.
    """

    name: str
    inputs: int
    outputs: int
    given: str = ""


class Shape(NamedTuple):
    """Width of the feed-forward layers, heads of keys and values; `gated`: a third product there.

    `tied`: embedding and output layer share their weight.
    """

    ffn: int
    kv_heads: int
    gated: bool
    tied: bool


@dataclass(frozen=True)
class FileNames:
    """Names in files of starting weights.

    `names` are those that a parameter may have, by its own in the model; with one of `layers` the
    names of parameters of its layers begin, and what matches one of `ignored` is no parameter.
    """

    names: Mapping[str, Sequence[str]]
    layers: Sequence[str]
    ignored: Sequence[str]


@dataclass(frozen=True)
class TensorCuts:
    """Layers of a model that may be cut over ranks, as ends of their names.

    `columns` are linear layers cut by output features, each with the number of runs that are cut by
    themselves (three for fused query, key and value); their `rows` follow, cut by input features.
    Those of one module have the same input. `partial` are whole on every rank, which sees a part of
    their input alone, as norms of heads do. `embedding` and `head` are cut over the vocabulary; the
    model calls its own `cross_entropy` on the logits. `positions` embeds the places of a sequence,
    (context,) -> (context, width), which are added to what `embedding` gives; what is between the
    cut layers works token by token. Without them sequences cannot be cut. `experts` are parameters
    of the modules that a model has as `experts`: the dim that is cut, and its runs.
    """

    columns: Mapping[str, int]
    rows: tuple[str, ...]
    embedding: str
    head: str
    positions: str = ""
    partial: tuple[str, ...] = ()
    experts: Mapping[str, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class AxisCuts:
    """Numbers of a model that may be cut over a tensor axis.

    `parameters` are cut, `ends` of them outside of the blocks; gradients of `partial` others are
    added up. A block has `entries` inputs
    of column cuts and `exits` outputs of row cuts, of which a recomputation repeats `again`.
    `heads` are what the axis must divide, by the key of the model that sets it: what, how many.
    `sequences`: may be cut too. Outputs of experts, which have the type of their inputs, are among
    the `entries`; gradients of `weights` of theirs, in fp32, are added up for each token. `keys`
    are the numbers of a token's key in a block, and of its value, which a context axis gathers; 0
    where none may cut positions.
    """

    parameters: int
    ends: Ends
    partial: int
    entries: int
    exits: int
    again: int
    heads: Mapping[str, tuple[str, int]]
    sequences: bool
    weights: int = 0
    keys: int = 0


@dataclass(frozen=True)
class StageCuts:
    """Cuts of a model into consecutive stages, between any two of its `blocks`.

    `before` are the modules that make the input of the first block of ids, `after` those that make
    logits of the output of the last one, by name. The model's `stage(layers, is_first=, is_last=)`
    is the pass through some of its layers: of ids in the first stage, to logits in the last one.
    Blocks hand on (sequences, context, the model's `width`) in the type of the weights.
    """

    before: tuple[str, ...]
    after: tuple[str, ...]


class Kept(NamedTuple):
    """Bytes that a forward pass keeps for the backward one, but the loss, and what that adds.

    `block` is the part of one block, `attention` what of all blocks is not kept where attention is
    recomputed. `gradients` are those of activations at their most, less the activations that are
    gone by then.
    """

    whole: int
    block: int
    attention: int
    gradients: int


Counts = Mapping[tuple[str, tuple[int, ...]], int]
"""(Kind, sizes) of an operator -> number of its uses."""

FP32, HALF, INT64 = 4, 2, 8


@dataclass(frozen=True)
class Widths:
    """Bytes of a number: of a weight in the passes, of its gradient, and of both as they travel.

    `weight` is kept, gathered and sent; `gradient` adds up over micro-batches, `reduced` is what of
    it travels. `stream` is what blocks hand on and norms give, `product` what products take.
    """

    weight: int = FP32
    gradient: int = FP32
    reduced: int = FP32
    stream: int = FP32
    product: int = HALF

    @property
    def wide_gradients(self) -> bool:
        """True where gradients have another type than their weights."""
        return self.gradient != self.weight

    def copied(self, weights: int) -> int:
        """Bytes of the narrow copies that autocast keeps of so many weights of products."""
        return self.product * weights if self.product < self.weight else 0
