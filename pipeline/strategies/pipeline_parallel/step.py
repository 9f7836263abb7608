"""The shared step where layers are stages of a pipeline, run by torch.distributed.pipelining.

A step's micro-batches pass through the stages in the order of a schedule. Along a data axis
gradients are averaged bucket by bucket, on the first stage each as soon as its last micro-batch has
passed back, on the others after it. A tensor axis and a context or an expert axis, whose cuts were
made before the stages, may lie besides.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import pipelining

from pipeline.cost.schedule import ONE_STAGE
from pipeline.parallel.collectives import collective
from pipeline.parallel.cut import axes_of
from pipeline.parallel.group import Group, mesh_of
from pipeline.parallel.mesh import CONTEXT, DATA, EXPERT, PIPELINE, TENSOR, Layout
from pipeline.parallel.reduction import mean_of
from pipeline.parallel.step import Stepper
from pipeline.parallel.types import Batch, Parts
from pipeline.strategies.context.step import ContextAxis, cut_sequences
from pipeline.strategies.expert.step import (
    ExpertAxis,
    cut_experts,
    mean_by_holders,
    shard_by_holders,
)
from pipeline.strategies.pipeline_parallel.plan import Pipelined, pieces
from pipeline.strategies.pipeline_parallel.stages import MarkedStage, StagedModel, Waits
from pipeline.strategies.sharded.rows import ShardedOptimiser, row_buckets
from pipeline.strategies.tensor.step import TensorAxis, cut_layers

SCHEDULES: dict[str, Any] = {
    "gpipe": pipelining.ScheduleGPipe,
    "1f1b": pipelining.Schedule1F1B,
    "interleaved": pipelining.ScheduleInterleaved1F1B,
    "zero_bubble": pipelining.ScheduleInterleavedZeroBubble,
}


def ends_of(layout: Layout, rank: int) -> dist.ProcessGroup | None:
    """The ranks of first and last stage; None on others and where they are one. Collective."""
    ends = None
    for other in range(layout.num_processes):
        line = layout.along(PIPELINE, other)
        if line[0] == other and len(line) > 1:
            made = dist.new_group([line[0], line[-1]])  # all ranks make all of them
            ends = made if rank in (line[0], line[-1]) else ends
    return ends


class PipelineStepper(Stepper):
    """The shared step over a rank's stages."""

    def __init__(
        self, parts: Parts, knobs: Pipelined, *, sequence: bool = False, zero_stage: int = 0
    ) -> None:
        """Cut experts, layers and sequences over the axes that do, then keep this rank's stages.

        `sequence`: as with strategy tensor. `zero_stage`: over data, 1 to shard the optimiser's
        state, 2 to shard weights and gradients too, but for the passes of a step. Collective.
        """
        layout = parts.layout
        # Context and expert ranks have means over tokens of their own, as data ranks have: their
        # axes are one, but for the gradients of experts.
        joined = layout.joined(DATA, CONTEXT, EXPERT)
        group, mesh = Group.join(layout), mesh_of(joined)
        self.pipeline = mesh[PIPELINE].get_group()
        [(both, ranks)] = [axis for axis in joined.axes if axis[0] not in (PIPELINE, TENSOR)]
        self.data = mesh[both].get_group() if ranks > 1 else None
        self.experts: dist.ProcessGroup | None = None
        replicas: dist.ProcessGroup | None = None
        if layout.size(EXPERT) > 1:
            apart = layout.joined(DATA, CONTEXT)
            others = (PIPELINE, EXPERT, TENSOR)
            [replicated] = [name for name, _ in apart.axes if name not in others]
            axes = mesh_of(apart)
            self.experts, replicas = axes[EXPERT].get_group(), axes[replicated].get_group()
            # Before the tensor axis, which adds up what has come back to the rank of a token.
            cut_experts(parts.model, ExpertAxis(self.experts))
        self.cut_over: TensorAxis | None = None
        if layout.size(TENSOR) > 1:
            self.cut_over = TensorAxis(mesh[TENSOR].get_group(), sequence, parts.precision.reduced)
            cut_layers(parts.model, self.cut_over)
        self.context: ContextAxis | None = None
        if layout.size(CONTEXT) > 1:
            self.context = ContextAxis(mesh_of(layout)[CONTEXT].get_group())
            cut_sequences(parts.model, self.context)
        any_model: Any = parts.model
        stages = knobs.stages(layout.size(PIPELINE), len(any_model.blocks))
        place = layout.coordinate(group.rank)[PIPELINE]
        self.knobs, self.staged = knobs, StagedModel(parts.model, stages, place)
        autocast = parts.precision.autocast
        self.own_stages = {n: self.staged.stage(n, autocast) for n in stages.of_rank(place)}
        self.zero = self.data if zero_stage else None
        """Ranks over which ZeRO cuts; None without."""
        self.rows: dict[Any, nn.Parameter] = {}
        """This rank's rows of each parameter, where the optimiser's state is sharded."""
        reduction = None
        if zero_stage == 2:
            # As torchtitan does. torch's stages know such a module: its weights are gathered by the
            # first forward pass of a step and stay, gradients add up whole, and after the last
            # micro-batch the schedule has them reduced and scattered, and the weights freed.
            from pipeline.strategies.sharded.step import shard  # needs more of torch

            with self.cut_over.carried(parts.model) if self.cut_over else nullcontext():
                for stage in self.own_stages.values():
                    shard(stage, mesh[both], parts, reshard=False)
            prepared = parts.prepare(narrow=False)
        elif zero_stage and self.data is not None:
            parts.materialise()
            if replicas is not None:
                sharded = shard_by_holders(parts, self.data, replicas)
            else:
                rows = row_buckets(parts, self.data, axes=(DATA, CONTEXT))
                sharded = ShardedOptimiser(parts, rows)
            prepared, reduction = parts.prepared(sharded), sharded.reduction
            self.rows = sharded.rows
        else:
            prepared = parts.prepare()
            if self.data is not None and replicas is not None:
                reduction = mean_by_holders(parts, self.data, replicas)
            elif self.data is not None:
                reduction = mean_of(parts, self.data)
        self.ends = ends_of(layout, group.rank)
        super().__init__(prepared, group, reduce=self.add_shared, reduction=reduction)
        self.device = next(self.model.parameters()).device
        self.waits = Waits(self.phases)
        owners = self.precision.owners(self.model, self.optimiser)
        self._names: dict[Tensor, str] = {owner: name for name, _, owner in owners}
        self._schedules: dict[tuple[int, ...], tuple[Any, int]] = {}
        self._scale = self._total = torch.zeros((), device=self.device)
        self._whole = 1
        """Number of micro-batches by which the loss of one is divided; weights are so already."""

    def accumulate(self, microbatches: Sequence[Batch]) -> Tensor:
        """All passes of the step; returns the mean loss where the last stage is, elsewhere 0."""
        self.precision.zero_grad(self.optimiser)
        if self.context is not None:
            microbatches = self.context.cut(microbatches)
        shape = tuple(microbatches[0].inputs.shape)
        if shape not in self._schedules:
            self._schedules[shape] = self._make_schedule(microbatches)
        runner, count = self._schedules[shape]
        self._whole = count if microbatches[0].weights is None else 1
        if self.reduction is not None:
            # The last gradient to the stage before would wait on the wire behind these, so all but
            # the first stage reduce after it, while they wait for the first one anyway.
            self.reduction.begin(count, during=0 in self.own_stages)
        parts = zip(*self.weighed(microbatches), strict=True)
        batch = Batch._make(None if part[0] is None else torch.cat(part) for part in parts)
        given = (batch.inputs,) if 0 in self.own_stages else ()
        wanted = together(batch) if self.staged.stages.count - 1 in self.own_stages else None
        # Each stage has them from its own batch: nothing is sent.
        sides = {} if batch.segments is None else {"segments": batch.segments}
        self._total = torch.zeros((), device=self.device)
        one = torch.ones((), device=self.device)
        with self.precision.scaled(one, self.optimiser, last=True) as scale:
            self._scale = scale.detach()
            # Around all passes: a weight is narrowed once, not for each micro-batch in flight.
            with self.waits.everywhere(), self.precision.autocast():
                runner.step(*given, target=wanted, return_outputs=False, **sides)
            self.reduced()
        return self._total

    def _make_schedule(self, microbatches: Sequence[Batch]) -> tuple[Any, int]:
        """torch's schedule and its micro-batches, made when the size of one is known."""
        stages = self.staged.stages
        sequences, context = microbatches[0].inputs.shape
        given = len(microbatches)
        count = given * pieces(self.knobs.microbatches, sequences, given, stages.ranks)
        size = sequences * given // count
        any_model: Any = self.model
        # What is sent between stages; the first one gets ids, and of the last nothing is sent.
        cut = self.cut_over.size if self.cut_over is not None and self.cut_over.sequence else 1
        ids = torch.empty((size, context), dtype=torch.int64, device="meta")
        shape = (size, context // cut, any_model.width)
        # FSDP2's shards are wider than what it gathers.
        dtype = self.precision.narrow_weights or next(self.model.parameters()).dtype
        between = torch.empty(shape, dtype=dtype, device="meta").requires_grad_()
        made = [
            MarkedStage(
                stage,
                number,
                stages.count,
                self.device,
                input_args=between if number else ids,
                output_args=between,
                group=self.pipeline,
            )
            for number, stage in self.own_stages.items()
        ]
        for one in made:
            one.waits = self.waits

        def loss(logits: Any, targets: Tensor) -> Tensor:
            with self.precision.autocast():
                share = any_model.loss(logits, *apart(targets)) / self._whole
            self.waits.wait()
            self._total += share.detach()
            scaled: Tensor = share * self._scale
            return scaled

        kind = SCHEDULES[self.knobs.schedule]
        held = made[0] if self.knobs.schedule in ONE_STAGE else made
        return kind(held, count, loss_fn=loss, scale_grads=False), count

    @collective
    def add_shared(self) -> None:
        """Add up gradients along the other axes, which are means along the data axis by now.

        Those of what is whole on all ranks of the tensor axis but saw parts of sequences, and those
        of the two copies of a tied weight. Under ZeRO each rank has rows or shards of them.
        """
        if self.cut_over is not None:
            self.cut_over.add_uncut(self.model, self.rows)
        if self.ends is not None:
            for name in self.staged.tied:
                tied = self.model.get_parameter(name)
                gradient = self.rows.get(tied, tied).grad
                assert gradient is not None
                gradient = getattr(gradient, "_local_tensor", gradient)
                if gradient.numel():  # the last ranks may have no rows
                    both = gradient.to(self.precision.reduced or gradient.dtype)
                    dist.all_reduce(both, group=self.ends)
                    gradient.copy_(both)

    def clip(self, parameters: list[Tensor]) -> Tensor:
        """Clip by the norm over all stages; each parameter counts once."""
        own = [p for p in parameters if self.staged.owned(self._names[p]) and p.grad is not None]
        local: list[tuple[Any, Any]] = [(p, getattr(p.grad, "_local_tensor", p.grad)) for p in own]
        # Of what no cut has divided over the ranks of an axis, the first of them counts it for all.
        others = {axis for axis in (TENSOR, EXPERT) if self.place.get(axis)}
        counted = [gradient for p, gradient in local if not others - axes_of(p)]
        squares = torch.nn.utils.get_total_norm(counted).to(self.device).double() ** 2
        tensor = None if self.cut_over is None else self.cut_over.ranks
        over_data = self.zero or self.experts
        for axis in (tensor, over_data, self.pipeline):
            if axis is not None:
                dist.all_reduce(squares, group=axis)
        return self.clip_by(squares.sqrt().float(), parameters)

    def is_first_with(self, name: str, axes: Collection[str]) -> bool:
        """True where no rank before this one holds its part of a parameter of its stages.

        A tied weight has two copies, of which the first stage's counts.
        """
        return self.staged.owned(name) and super().is_first_with(name, {*axes, PIPELINE})

    def weights(self) -> Iterable[tuple[str, Tensor]]:
        """Names and whole weights of all stages. Collective."""
        return self.staged.weights(self.pipeline, self.device)

    def mean(self, part: Tensor) -> Tensor:
        """The last stage's loss, as a mean over all tokens. Collective, outside of the clock."""
        # Only ranks of a last stage have one, and those along its tensor axis have the same.
        dist.all_reduce(part)
        return part / (self.group.size / self.pipeline.size())


def together(batch: Batch) -> Tensor:
    """Targets (sequences, context), with their weights as (sequences, 2, context) in float64.

    torch's schedule cuts one tensor into micro-batches, and that format has both to the bit.
    """
    if batch.weights is None:
        return batch.targets
    return torch.stack([batch.targets.double(), batch.weights.double()], dim=1)


def apart(targets: Tensor) -> tuple[Tensor, ...]:
    """Targets and weights that `together` has put together."""
    if targets.dim() == 2:
        return (targets,)
    ids, weights = targets.unbind(1)
    return ids.long(), weights.float()
