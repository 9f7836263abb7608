"""Layers cut over a tensor axis, as in Megatron-LM (Shoeybi et al. 2019, arXiv 1909.08053).

A pair of layers is cut by columns, then by rows: activations between them stay cut, and each pair
costs one all-reduce in the forward pass (`TensorAxis.leave`) and one in the backward pass
(`TensorAxis.enter`). With sequence parallelism (Korthikanti et al. 2022, arXiv 2205.05198) what is
between the pairs is cut along the sequence: an all-gather enters a pair and a reduce-scatter leaves
it, which together send what the all-reduce does.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from pipeline.parallel.cut import NAME, cut, cut_of
from pipeline.parallel.group import (
    Group,
    Sending,
    across,
    flattened,
    mesh_of,
    ring_reduce_scatter,
    unflatten,
)
from pipeline.parallel.mesh import DATA, TENSOR
from pipeline.parallel.reduction import averaged
from pipeline.parallel.step import Stepper, whole_norm
from pipeline.parallel.types import Parts


class TensorAxis:
    """The ranks along the tensor axis of this one; its methods are collective among them.

    `sequence`: between pairs of cut layers each has consecutive tokens of every sequence.
    `reduced`: the type in which gradients travel, None for their own.
    """

    def __init__(
        self, ranks: dist.ProcessGroup, sequence: bool, reduced: torch.dtype | None
    ) -> None:
        self.ranks, self.sequence, self.reduced = ranks, sequence, reduced
        self.size = ranks.size()
        self.partial: set[Tensor] = set()
        """Whole parameters of which this rank sees a part of the input, though no tokens less."""

    def add(self, tensor: Tensor, op: Any = dist.ReduceOp.SUM) -> Tensor:
        """All-reduce in place; returns it."""
        dist.all_reduce(tensor, op, self.ranks)
        return tensor

    def gather(self, part: Tensor) -> Tensor:
        """Whole sequences (sequences, context, ...) of this rank's tokens of each."""
        parts = part.new_empty((self.size * part.shape[0], *part.shape[1:]))
        dist.all_gather_into_tensor(parts, part.contiguous(), self.ranks)
        return torch.cat(parts.chunk(self.size), dim=1)

    def scatter(self, whole: Tensor) -> Tensor:
        """This rank's tokens of the sum over all ranks of (sequences, context, ...)."""
        parts = torch.stack(whole.chunk(self.size, dim=1))
        if parts.device.type == "cpu":
            return ring_reduce_scatter(parts, self.ranks).view(parts.shape[1:])
        own = torch.empty_like(parts[0])
        dist.reduce_scatter_tensor(own, parts, group=self.ranks)
        return own

    def add_uncut(self, model: nn.Module, rows: Mapping[Any, Tensor]) -> None:
        """Add up the gradients of what is whole on all ranks, where each saw some tokens alone.

        Or, of what is `partial`, some heads alone. Where this rank has `rows` of them, of these.
        """
        uncut = [p for p in model.parameters() if cut_of(p) is None]
        some = [rows.get(p, p).grad for p in uncut if self.sequence or p in self.partial]
        # Of what FSDP2 has cut over the data axis all ranks of this one have the same shards.
        seen = [getattr(grad, "_local_tensor", grad) for grad in some if grad is not None]
        if seen:
            flat = flattened(seen)
            unflatten(self.add(flat.to(self.reduced or flat.dtype)), seen)

    @contextmanager
    def carried(self, model: nn.Module) -> Iterator[None]:
        """Within this context FSDP2 replaces parameters by its shards, which get their `Cut`."""
        before = dict(model.named_parameters())
        yield
        shards = dict(model.named_parameters())
        for name, parameter in before.items():
            if (made := cut_of(parameter)) is not None:
                setattr(shards[name], NAME, made)
        self.partial = {shards[name] for name, p in before.items() if p in self.partial}

    def own_positions(self, positions: Tensor) -> Tensor:
        """(..., context) -> those of this rank's tokens (..., tokens)."""
        return positions.chunk(self.size, dim=-1)[self.ranks.rank()]

    def sum(self, x: Tensor) -> Tensor:
        """The sum over all ranks, on each of them."""
        return self.add(x.clone(memory_format=torch.contiguous_format))

    def enter(self, x: Tensor) -> Tensor:
        """The input of a column cut: unchanged, or gathered where sequences are cut."""
        if self.sequence:
            return across(x, self.gather, self.scatter)
        return across(x, as_it_is, self.sum)

    def leave(self, x: Tensor) -> Tensor:
        """The sum over all ranks, of this rank's tokens where sequences are cut."""
        return across(x, self.scatter, self.gather) if self.sequence else self.total(x)

    def total(self, x: Tensor) -> Tensor:
        """The whole sum, in the memory of `x`; the backward pass hands its gradient on as it is."""
        return across(x, self.add, as_it_is)

    def weighted(
        self, run: Callable[..., Tensor], x: Tensor, chosen: Tensor, weights: Tensor
    ) -> Tensor:
        """Outputs (tokens, width) of experts of which each rank has some features.

        Tokens, numbers and weights are as in `ExpertAxis.routed`. What each rank makes are parts of
        a sum, and so are the gradients of their weights (tokens, k), of which the router, whole on
        every rank, needs the sum.
        """
        return self.leave(run(self.enter(x), chosen, self.enter(weights)))


def as_it_is(x: Tensor) -> Tensor:
    """The same tensor, where nothing has to be sent."""
    return x.view_as(x)


class Entry:
    """The input of several column cuts, as of query, key and value: entered once for all."""

    def __init__(self, axis: TensorAxis) -> None:
        self.axis, self.users, self.left = axis, 0, 0
        self.held: tuple[Tensor, Tensor] | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """`TensorAxis.enter` of this input, made once and kept until its last user has it."""
        # By identity: a recomputed pass has another tensor, and enters it anew.
        if self.held is None or self.held[0] is not x:
            self.held, self.left = (x, self.axis.enter(x)), self.users
        self.left -= 1
        entered = self.held[1]
        if not self.left:
            self.held = None
        return entered


class ColumnLinear(nn.Module):
    """This rank's output features of a linear layer; `runs` as in `cut.Cut`."""

    def __init__(
        self, layer: nn.Linear, axis: TensorAxis, runs: int = 1, entry: Entry | None = None
    ) -> None:
        super().__init__()
        self.enter = axis.enter if entry is None else entry
        self.weight = cut(layer.weight, 0, runs, axis.ranks)
        self.bias = None if layer.bias is None else cut(layer.bias, 0, runs, axis.ranks)

    def forward(self, x: Tensor) -> Tensor:
        """(..., in features) -> (..., this rank's out features)."""
        return F.linear(self.enter(x), self.weight, self.bias)


class RowLinear(nn.Module):
    """This rank's input features of a linear layer; the sum over ranks is its output."""

    def __init__(self, layer: nn.Linear, axis: TensorAxis) -> None:
        super().__init__()
        self.axis = axis
        self.weight = cut(layer.weight, 1, 1, axis.ranks)
        self.bias = layer.bias

    def forward(self, x: Tensor) -> Tensor:
        """(..., this rank's in features) -> (..., out features)."""
        out = self.axis.leave(F.linear(x, self.weight))
        return out if self.bias is None else out + self.bias.to(out.dtype)


class VocabularyEmbedding(nn.Module):
    """This rank's rows of an embedding; ids of other ranks' rows give zeros before the sum."""

    def __init__(self, layer: nn.Embedding, axis: TensorAxis) -> None:
        super().__init__()
        self.axis = axis
        self.weight = cut(layer.weight, 0, 1, axis.ranks)
        made = cut_of(self.weight)
        assert made is not None
        [(self.start, _)] = made.spans()

    def forward(self, ids: Tensor) -> Tensor:
        """(...) -> (..., width)."""
        own, place = own_rows(ids, self.start, len(self.weight))
        return self.axis.leave(F.embedding(place, self.weight) * own.unsqueeze(-1))


class OwnPositions(nn.Module):
    """The embedding of positions, whole on every rank, of this rank's tokens alone.

    `own` gives of (..., context) those of its tokens.
    """

    def __init__(self, weight: nn.Parameter, own: Sending) -> None:
        super().__init__()
        self.weight, self.own = weight, own

    def forward(self, positions: Tensor) -> Tensor:
        """(..., context) -> (..., this rank's tokens, width)."""
        return F.embedding(self.own(positions), self.weight)


def own_rows(ids: Tensor, start: int, count: int) -> tuple[Tensor, Tensor]:
    """A mask of the ids in this rank's rows, and their places there, 0 for the others."""
    place = ids - start
    own = (place >= 0) & (place < count)
    return own, place * own


def vocabulary_cross_entropy(
    axis: TensorAxis, start: int, logits: Tensor, targets: Tensor, weights: Tensor | None = None
) -> Tensor:
    """Mean cross-entropy of logits (tokens, this rank's vocabulary) in nats, or weighted sum."""
    largest = axis.add(logits.detach().amax(dim=-1), dist.ReduceOp.MAX)
    # So that no exponential overflows; the loss, and its gradient, are the same without.
    shifted = logits - largest.unsqueeze(-1)
    total = axis.total(shifted.exp().sum(dim=-1))
    # Each target is in the columns of one rank; the others add zero.
    own, place = own_rows(targets, start, logits.shape[-1])
    chosen = axis.total(shifted.gather(-1, place.unsqueeze(-1)).squeeze(-1) * own)
    losses = total.log() - chosen
    return losses.mean() if weights is None else losses @ weights


def cut_layers(model: nn.Module, axis: TensorAxis) -> None:
    """Replace the layers that the model's family names in `tensor_cuts` by this rank's parts."""
    any_model: Any = model
    cuts = any_model.tensor_cuts
    entries: dict[str, Entry] = defaultdict(lambda: Entry(axis))
    for name, module in list(model.named_modules()):
        suffix = next((end for end in (*cuts.columns, *cuts.rows) if name.endswith(end)), None)
        if suffix in cuts.columns:
            # Columns of one module, as query, key and value, have one input.
            entry = entries[name.rpartition(".")[0]]
            entry.users += 1
            model.set_submodule(name, ColumnLinear(module, axis, cuts.columns[suffix], entry))
        elif suffix is not None:
            model.set_submodule(name, RowLinear(module, axis))
        elif name.endswith(cuts.partial):
            axis.partial.update(module.parameters())
    for experts in any_model.experts if cuts.experts else ():
        for name, (dim, runs) in cuts.experts.items():
            setattr(experts, name, cut(getattr(experts, name), dim, runs, axis.ranks))
        experts.forward = partial(axis.weighted, experts.forward)
    table: Any = model.get_submodule(cuts.embedding)
    head: Any = model.get_submodule(cuts.head)
    embedding, output = VocabularyEmbedding(table, axis), ColumnLinear(head, axis)
    if head.weight is table.weight:
        output.weight = embedding.weight
    model.set_submodule(cuts.embedding, embedding)
    model.set_submodule(cuts.head, output)
    for module in model.modules() if head.bias is not None else ():
        for name, parameter in list(module.named_parameters(recurse=False)):
            if parameter is head.bias:  # it has two names
                setattr(module, name, output.bias)
    if axis.sequence:
        places: Any = model.get_submodule(cuts.positions)
        model.set_submodule(cuts.positions, OwnPositions(places.weight, axis.own_positions))
    any_model.first_column = embedding.start
    any_model.cross_entropy = partial(vocabulary_cross_entropy, axis, embedding.start)


def tensor_step(parts: Parts, *, sequence: bool, zero_stage: int) -> Stepper:
    """The shared step over cut layers; gradients are averaged along the data axis. Collective.

    `zero_stage`: with 2 and 3 FSDP2 also cuts a rank's tensors along the data axis; they are then
    DTensors, which carry their `Cut` over the tensor axis. With 0 it does not.
    """
    group, mesh = Group.join(parts.layout), mesh_of(parts.layout)
    axis = TensorAxis(mesh[TENSOR].get_group(), sequence, parts.precision.reduced)
    cut_layers(parts.model, axis)
    along_axis: dict[str, Any] = {
        "reduce": partial(axis.add_uncut, parts.model, {}),
        "norm": partial(whole_norm, ranks=axis.ranks),
    }
    if zero_stage:
        from pipeline.strategies.sharded.step import shard, without_reduction  # loads FSDP2

        with axis.carried(parts.model):
            root = shard(parts.model, mesh[DATA], parts, reshard=zero_stage == 3)
        prepared = parts.prepare(narrow=False)
        return Stepper(prepared, group, accumulating=lambda: without_reduction(root), **along_axis)
    prepared = parts.prepare()
    several = parts.layout.data_parallel > 1
    averaging = averaged(parts, mesh[DATA].get_group()) if several else {}
    return Stepper(prepared, group, **averaging, **along_axis)
