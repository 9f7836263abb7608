"""Model families, one folder each; none of them knows about ranks.

Each parameter gets its initial values in place and whole, by `torch.nn.init`, after it has been
assigned: ranks that cut the weights repeat these writes, see `deferred.py`.

A family's `model.py` has `build(spec) -> nn.Module`, whose `forward(inputs, targets)` returns the
mean loss and whose `blocks` are the layers that repeat; given weights of the targets as a third
argument, it returns the weighted sum. Its `arithmetic.py`, without torch, has
`num_parameters(model)`, `layer_parameters(model)`, `product_weights(model)`,
`flops_per_token(model)`, `end_parameters(model)`, `activation_bytes(model, sequences, formats)` and
`logit_bytes(model, sequences)`, for recomputation `recomputed_flops_per_token(model)`,
`input_bytes(model, sequences, formats)` and `block_bytes(model, sequences, formats)`, and
`parameter_shapes(model)`; for annotations, `boundary_shapes(model)`. A model with `tensor_cuts` may
be cut over a tensor axis, and its arithmetic has `axis_cuts(model)`; one with `stage_cuts` into
stages of a pipeline. With `operators(model, sequences, ranks)` its steps can be predicted from
what `calibrate` has measured.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType

from pipeline.errors import StudyError
from pipeline.study.spec import ModelSpec


def arithmetic(model: ModelSpec) -> ModuleType:
    """The sizes of the model's family; raises StudyError for an unknown one."""
    return family_module(model.family, "arithmetic")


def num_parameters(model: ModelSpec) -> int:
    """Trainable parameters, those that two layers share counted once."""
    return int(arithmetic(model).num_parameters(model))


def layer_parameters(model: ModelSpec) -> int:
    """Parameters of one of the layers that repeat."""
    return int(arithmetic(model).layer_parameters(model))


def end_parameters(model: ModelSpec) -> tuple[int, int]:
    """Parameters before the layers that repeat, and after them; a shared one is in both."""
    before, after = arithmetic(model).end_parameters(model)
    return int(before), int(after)


def product_weights(model: ModelSpec) -> int:
    """Weights that are used in matrix products; the output layer counts once."""
    return int(arithmetic(model).product_weights(model))


def axis_cuts(model: ModelSpec) -> AxisCuts:
    """Numbers of a model to be cut over a tensor axis; StudyError where it cannot be cut."""
    found: AxisCuts = arithmetic(model).axis_cuts(model)
    return found


def flops_per_token(model: ModelSpec) -> float:
    """Model FLOPs of one forward and backward pass, per token."""
    return float(arithmetic(model).flops_per_token(model))


def recomputed_flops_per_token(model: ModelSpec) -> float:
    """FLOPs per token that recomputation adds to `flops_per_token`: no model FLOPs."""
    return float(arithmetic(model).recomputed_flops_per_token(model))


def tensor_shapes(model: ModelSpec) -> dict[str, tuple[int | None, ...]]:
    """Shape of every parameter and of every module's output; None is the number of sequences."""
    sizes = arithmetic(model)
    return {**sizes.parameter_shapes(model), **sizes.boundary_shapes(model)}


def family_module(family: str, part: str) -> ModuleType:
    """A file of a family's folder; raises StudyError where there is none."""
    try:
        return importlib.import_module(f"{__name__}.{family}.{part}")
    except ModuleNotFoundError:
        raise StudyError(
            f"model family {family!r} has no file pipeline/models/{family}/{part}.py; "
            "add it or fix model.family"
        ) from None


@dataclass(frozen=True)
class TensorCuts:
    """Layers of a model that may be cut over ranks, as ends of their names.

    `columns` are linear layers cut by output features, each with the number of runs that are cut by
    themselves (three for fused query, key and value); their `rows` follow, cut by input features.
    Those of one module have the same input. `partial` are whole on every rank, which sees a part of
    their input alone, as norms of heads do. `embedding` and `head` are cut over the vocabulary; the
    model calls its own `cross_entropy` on the logits. `positions` embeds the places of a sequence,
    (context,) -> (context, width), which are added to what `embedding` gives; what is between the
    cut layers works token by token. Without them sequences cannot be cut.
    """

    columns: Mapping[str, int]
    rows: tuple[str, ...]
    embedding: str
    head: str
    positions: str = ""
    partial: tuple[str, ...] = ()


@dataclass(frozen=True)
class AxisCuts:
    """Numbers of a model that may be cut over a tensor axis.

    `parameters` are cut; gradients of `partial` others are added up. A block has `entries` inputs
    of column cuts and `exits` outputs of row cuts, of which a recomputation repeats `again`.
    `heads` are what the axis must divide, by the key of the model that sets it: what, how many.
    `sequences`: may be cut too.
    """

    parameters: int
    partial: int
    entries: int
    exits: int
    again: int
    heads: Mapping[str, tuple[str, int]]
    sequences: bool


@dataclass(frozen=True)
class StageCuts:
    """How a model may be cut into consecutive stages, between any two of its `blocks`.

    `before` are the modules that its `embed(ids)` uses to make the input of the first block,
    `after` those that its `head(x)` uses to make logits of the output of the last one. The model's
    `loss(logits, targets)` uses none; `width` is the last dim of what blocks hand on, whose first
    two are those of the ids and whose type is that of the weights.
    """

    before: tuple[str, ...]
    after: tuple[str, ...]


Counts = Mapping[tuple[str, tuple[int, ...]], int]
"""(Kind, sizes) of an operator -> number of its uses."""

FP32, HALF, INT64 = 4, 2, 8


@dataclass(frozen=True)
class Formats:
    """Bytes of an input or output of a matrix product, and of a layer norm's.

    `copies_weights`: autocast keeps a narrow copy of each weight of a product.
    """

    product: int
    norm: int
    copies_weights: bool
