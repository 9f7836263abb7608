"""A few annotated tensors, the rest placed by DTensor's sharding propagation, as GSPMD does.

GSPMD (Xu et al. 2021, arXiv 2105.04663) completes annotations in both directions over the whole
graph; DTensor decides operator by operator, forwards, for the least communication of each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import combinations
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.experimental import implicit_replication, register_sharding

from pipeline.parallel.group import Group, flattened, mesh_of
from pipeline.parallel.mesh import DATA
from pipeline.parallel.step import Stepper
from pipeline.parallel.types import Batch, Parts
from pipeline.precision.native import Precision
from pipeline.strategies.annotated.plan import Annotated, Annotation


def placements(annotation: Annotation, mesh: DeviceMesh) -> list[Placement]:
    """DTensor's words, one for each axis of the mesh, for ours, one for each dim of the tensor."""
    axes = mesh.mesh_dim_names or ()
    return [Shard(annotation.index(axis)) if axis in annotation else Replicate() for axis in axes]


def place(
    model: nn.Module, mesh: DeviceMesh, annotations: Mapping[str, Annotation]
) -> dict[str, list[str]]:
    """Replace every parameter by a DTensor, replicated unless annotated; outputs are redistributed.

    Returns the dictionary that the first forward pass fills with the placement of each output, by
    the name of its module. Nothing is sent: every rank holds the same whole parameters.
    """
    made: dict[nn.Parameter, nn.Parameter] = {}  # a tied one stays one
    for module_name, module in model.named_modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            if parameter not in made:
                full = f"{module_name}.{name}".removeprefix(".")
                wanted = placements(annotations.get(full, ()), mesh)
                made[parameter] = nn.Parameter(
                    distribute_tensor(parameter.detach(), mesh, wanted, src_data_rank=None)
                )
            module.register_parameter(name, made[parameter])
    placed: dict[str, list[str]] = {}

    def note(name: str, module: nn.Module, inputs: Any, output: Any) -> None:
        if name not in placed and isinstance(output, DTensor):
            placed[name] = words(output)

    for name, module in model.named_modules():
        if name in annotations:
            module.register_forward_hook(_redistributed(placements(annotations[name], mesh)))
        if name:
            module.register_forward_hook(partial(note, name))
    return placed


def _redistributed(wanted: Sequence[Placement]) -> Any:
    return lambda module, inputs, output: output.redistribute(placements=wanted)


def words(tensor: DTensor) -> list[str]:
    """For each axis of the mesh `replicate`, `shard DIM` or `partial`."""
    return [
        f"shard {place.dim}" if isinstance(place, Shard) else
        "replicate" if place.is_replicate() else "partial"
        for place in tensor.placements
    ]  # fmt: skip


class CutUpdates:
    """Parameters that the passes have whole, or as annotated, and of which a rank updates a part.

    The model has the parts, which the optimiser steps; `gather` puts in their places what the
    passes need, until `scatter`. So weight-update sharding (Xu et al. 2020, arXiv 2004.13336), the
    stage 1 of ZeRO, is three redistributions of DTensor: an all-gather of a parameter, a
    reduce-scatter of its gradient, and a cut, of the initial values, which sends nothing.
    """

    def __init__(
        self, model: nn.Module, mesh: DeviceMesh, updates: Mapping[str, Annotation]
    ) -> None:
        self.parts = list[tuple[nn.Parameter, Sequence[Placement], list[tuple[nn.Module, str]]]]()
        """Each with the placements that the passes need, and its places in the model."""
        self.words = dict[str, list[str]]()
        for full, annotation in updates.items():
            whole: Any = model.get_parameter(full)
            own = whole.detach().redistribute(placements=placements(annotation, mesh))
            places = [
                (module, name)
                for module in model.modules()
                for name, parameter in module.named_parameters(recurse=False)
                if parameter is whole  # in several places where it is tied
            ]
            self.parts.append((nn.Parameter(own), whole.placements, places))
            self.words[full] = words(own)
        self._put_parts()

    def _put_parts(self) -> None:
        for part, _, places in self.parts:
            for module, name in places:
                module.register_parameter(name, part)

    def gather(self, precision: Precision) -> None:
        """Give the model what the passes need. Collective."""
        for part, wanted, places in self.parts:
            own: Any = part.detach()
            whole = nn.Parameter(own.redistribute(placements=wanted))
            if precision.wide_gradients:
                whole.grad_dtype = precision.gradients
            for module, name in places:
                module.register_parameter(name, whole)

    def scatter(self) -> None:
        """Give the model its parts, and these the sums of what all ranks have of their gradients.

        Collective.
        """
        for part, _, [(module, name), *_] in self.parts:
            shards: Any = part
            gradient: Any = module.get_parameter(name).grad
            part.grad = gradient.redistribute(placements=shards.placements)
        self._put_parts()


class AnnotatedStepper(Stepper):
    """The shared step over DTensors; `boundaries` are what `place` returned.

    Sequences are cut over the data axis; along every other axis all ranks have the same ones.
    """

    def __init__(self, parts: Parts, knobs: Annotated) -> None:
        """Place the parameters of the model on the mesh. Collective."""
        any_model: Any = parts.model
        group = Group.join(parts.layout)
        self.mesh, names = mesh_of(parts.layout), [name for name, _ in parts.layout.axes]
        self.groups = dict[tuple[str, ...], dist.ProcessGroup]()
        for count in range(1, len(names) + 1):
            for axes in combinations(names, count):
                # Several are one group too, so that DTensor adds up over them by one all-reduce.
                mesh = self.mesh[axes]._flatten("_".join(axes)) if count > 1 else self.mesh[axes]
                self.groups[axes] = mesh.get_group()
        chosen, updates = knobs.resolved(any_model.spec, parts.layout.axes)
        self.boundaries = place(parts.model, self.mesh, chosen)
        self.parameters = {n: words(p) for n, p in any_model.named_parameters()}
        self.updates = CutUpdates(parts.model, self.mesh, updates)
        super().__init__(
            parts.prepare(), group, forward=self.part_of_loss, reduce=self.reduce_gradients
        )
        self.sequences = placements((DATA,), self.mesh)
        self.placed: Sequence[Placement] = ()
        """Placement of the last loss: partial, or the same on all ranks of an axis."""

    def part_of_loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Token ids and targets (this rank's sequences, context) -> its part of the mean loss.

        The parts are not put together here: that would make all ranks wait for one another between
        the two passes. The backward pass starts from the whole loss all the same.
        """
        batch = [DTensor.from_local(ids, self.mesh, self.sequences) for ids in (inputs, targets)]
        loss: DTensor = self.model(*batch)
        self.placed = loss.placements
        return loss.to_local(grad_placements=[Replicate()] * self.mesh.ndim)

    def mean(self, part: Tensor) -> Tensor:
        """The whole loss from the part of each rank. Collective."""
        return DTensor.from_local(part, self.mesh, self.placed).full_tensor()

    def step(self, microbatches: Sequence[Batch]) -> None:
        """Gather what ranks updated in parts, then the shared step.

        A plain tensor that meets a DTensor counts as replicated.
        """
        self.updates.gather(self.precision)
        with implicit_replication():
            super().step(microbatches)

    def propagate(self, batch: Batch) -> None:
        """The passes of one micro-batch, so that all has its placement; no update follows."""
        self.updates.gather(self.precision)
        with implicit_replication(), self.precision.autocast():
            torch.autograd.backward(self.forward(*batch.given))

    def reduce_gradients(self) -> None:
        """Add up the gradients, which are partial over the axes that cut what they come from.

        Those of replicated parameters travel together, by one all-reduce for each set of axes.
        """
        self.updates.scatter()
        together: dict[tuple[str, ...], list[Any]] = {}
        parameters: list[Any] = list(self.model.parameters())
        for parameter in parameters:
            axes = summed_over(parameter.grad, parameter)
            if axes is None:  # cut otherwise than its parameter, so DTensor has to move it
                parameter.grad = parameter.grad.redistribute(placements=parameter.placements)
            elif axes:
                together.setdefault(axes, []).append(parameter)
        for axes, members in together.items():
            parts = [parameter.grad.to_local() for parameter in members]
            flat = flattened(parts)
            self.add(flat, axes)
            pieces = torch.split(flat, [part.numel() for part in parts])
            for parameter, part, piece in zip(members, parts, pieces, strict=True):
                parameter.grad = DTensor.from_local(
                    piece.view_as(part),
                    parameter.device_mesh,
                    parameter.placements,
                    shape=parameter.shape,
                    stride=parameter.stride(),
                )

    def clip(self, parameters: list[Tensor]) -> Tensor:
        """Clip by the norm of the whole gradient: parts are added over the axes that cut them."""
        parts: dict[tuple[str, ...], list[Tensor]] = {}
        for parameter in parameters:
            gradient: Any = parameter.grad
            names = zip(self.mesh.mesh_dim_names or (), gradient.placements, strict=True)
            cut_over = tuple(name for name, place in names if place.is_shard())
            parts.setdefault(cut_over, []).append(gradient.to_local())
        squares = []
        for axes, members in parts.items():
            squares.append(torch.nn.utils.get_total_norm(members) ** 2)
            if axes:
                self.add(squares[-1], axes)
        norm = torch.stack(squares).sum().sqrt()
        # The factor of torch's clip_grads_with_norm_.
        scale = (self.max_grad_norm / (norm + 1e-6)).clamp(max=1.0)
        torch._foreach_mul_([part for members in parts.values() for part in members], scale)
        self.precision.overflowed(self.optimiser, norm)
        return norm

    def add(self, tensor: Tensor, axes: tuple[str, ...]) -> None:
        """All-reduce in place over these axes of the mesh."""
        dist.all_reduce(tensor, group=self.groups[axes])

    @property
    def placements(self) -> dict[str, dict[str, list[str]]]:
        """Placement on the axes of each parameter and, after a step, of each module's output.

        In the passes; `updates` are where the updates of parameters lie that are cut otherwise.
        """
        updates = {"updates": self.updates.words} if self.updates.words else {}
        return {"parameters": self.parameters, **updates, "boundaries": dict(self.boundaries)}


def summed_over(gradient: DTensor, parameter: DTensor) -> tuple[str, ...] | None:
    """The axes over which a gradient is a sum that its parameter has whole.

    None where more is to be done than to add it up over these.
    """
    names = parameter.device_mesh.mesh_dim_names or ()
    places = zip(names, gradient.placements, parameter.placements, strict=True)
    apart = [(name, mine, wanted) for name, mine, wanted in places if mine != wanted]
    if all(mine.is_partial("sum") and wanted.is_replicate() for _, mine, wanted in apart):
        return tuple(name for name, *_ in apart)
    return None


_FLASH = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_FLASH_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default
_ALIKE = (Replicate(), Shard(0), Shard(1))
"""Sequences and heads attend by themselves: torch has this rule for CUDA's kernels only."""


@register_sharding(_FLASH)  # type: ignore[untyped-decorator]
def _attention(query: Any, key: Any, value: Any, *rest: Any, **options: Any) -> Any:
    """Output and log-sum-exp are placed as query, key and value are."""
    return [([p, p], [p, p, p, *(None for _ in rest)]) for p in _ALIKE]


@register_sharding(_FLASH_BACKWARD)  # type: ignore[untyped-decorator]
def _attention_backward(*given: Any, **options: Any) -> Any:
    """Three gradients of six tensors that are placed alike."""
    return [([p] * 3, [*[p] * 6, *(None for _ in given[6:])]) for p in _ALIKE]
