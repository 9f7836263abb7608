"""Experts cut along an expert axis: tokens travel to them and back by all-to-alls.

As in GShard (Lepikhin et al. 2020, arXiv 2006.16668) and DeepSpeed-MoE (Rajbhandari et al. 2022,
arXiv 2201.05596), but without their capacity: pieces have as many rows as the router sends, so that
no token is dropped and the step is that of a single device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pipeline.parallel.cut import cut, cuts_of
from pipeline.parallel.group import Group, across, buckets, mesh_of
from pipeline.parallel.mesh import CONTEXT, DATA, EXPERT
from pipeline.parallel.reduction import MeanBucket, Reduction
from pipeline.parallel.step import Stepper, norm_over, whole_norm
from pipeline.parallel.types import Parts
from pipeline.strategies.sharded.rows import RowBucket, ShardedOptimiser


class ExpertAxis:
    """The ranks along the expert axis of this one; its methods are collective among them."""

    def __init__(self, ranks: dist.ProcessGroup) -> None:
        self.ranks, self.size = ranks, ranks.size()

    def exchange(self, rows: Tensor, given: Sequence[int], taken: Sequence[int]) -> Tensor:
        """Rows of all ranks, in their order: each gives so many, one run after the other."""
        arrived = rows.new_empty((sum(taken), *rows.shape[1:]))
        dist.all_to_all_single(arrived, rows.contiguous(), [*taken], [*given], group=self.ranks)
        return arrived

    def routed(
        self, run: Callable[..., Tensor], own: int, x: Tensor, chosen: Tensor, weights: Tensor
    ) -> Tensor:
        """Weighted outputs of the experts that each token goes to, (tokens, width).

        Of tokens (tokens, width) with numbers and weights of their experts, (tokens, k). `run` is
        the forward pass of this rank's `own` experts.
        """
        count = chosen.shape[1]
        # Flattened, the k experts of a token are in a row: choice i is of token i // k.
        expert, order = chosen.flatten().sort(stable=True)
        # Numbers of rows first: whoever receives must know how many come, and for which expert.
        going = torch.bincount(expert, minlength=self.size * own)
        coming = self.exchange(going, [own] * self.size, [own] * self.size)
        given, taken = (each.view(self.size, own).sum(1).tolist() for each in (going, coming))
        arrived = exchanged(x[order // count], self, given, taken)
        # Of each rank those for the first expert come first.
        numbers = torch.arange(own, device=x.device).repeat(self.size).repeat_interleave(coming)
        # `run` would weigh and add up: of a row it has one expert, of weight one.
        outputs = run(arrived, numbers.unsqueeze(1), arrived.new_ones((len(arrived), 1)))
        # Weighted where the router is, so that its gradient needs no message of its own.
        back = exchanged(outputs, self, taken, given)[order.argsort()]
        return (back.view(len(x), count, -1) * weights.unsqueeze(-1)).sum(1).to(x.dtype)


def exchanged(rows: Tensor, axis: ExpertAxis, given: list[int], taken: list[int]) -> Tensor:
    """`ExpertAxis.exchange`, whose backward pass gives the gradients back."""
    there = partial(axis.exchange, given=given, taken=taken)
    return across(rows, there, partial(axis.exchange, given=taken, taken=given))


def cut_experts(model: nn.Module, axis: ExpertAxis) -> None:
    """Leave this rank's experts of each layer, and have tokens travel to those of all ranks."""
    any_model: Any = model
    for experts in any_model.experts:
        for name, parameter in list(experts.named_parameters(recurse=False)):
            setattr(experts, name, cut(parameter, 0, 1, axis.ranks, EXPERT))
        experts.num_experts //= axis.size
        routed = partial(axis.routed, experts.forward, experts.num_experts)
        uncompiled: Any = torch.compiler.disable
        experts.forward = uncompiled(routed)


def by_holders(
    parts: Parts, everyone: dist.ProcessGroup, replicas: dist.ProcessGroup
) -> list[tuple[list[nn.Parameter], dist.ProcessGroup]]:
    """Buckets of experts, which their replicas hold, and of all else, which everyone does.

    In the order of a backward pass. A rank's experts have had the tokens of all ranks of the axis:
    the sum over these is there, and is divided by the number of all ranks too.
    """
    backwards = list(parts.model.parameters())[::-1]
    place = {parameter: number for number, parameter in enumerate(backwards)}
    members = [
        (some, ranks)
        for ranks, of_experts in ((everyone, False), (replicas, True))
        for some in buckets(p for p in backwards if is_expert(p) == of_experts)
    ]
    return sorted(members, key=lambda each: place[each[0][-1]])


def is_expert(parameter: Tensor) -> bool:
    """True where an expert axis has cut it."""
    return any(made.axis == EXPERT for made in cuts_of(parameter))


def mean_by_holders(
    parts: Parts, everyone: dist.ProcessGroup, replicas: dist.ProcessGroup
) -> Reduction:
    """Mean gradients, those of experts over their replicas alone; see `reduction.mean_of`."""
    narrow, count = parts.precision.reduced, everyone.size()
    members = by_holders(parts, everyone, replicas)
    return Reduction(MeanBucket(some, ranks, narrow, count) for some, ranks in members)


def shard_by_holders(
    parts: Parts, everyone: dist.ProcessGroup, replicas: dist.ProcessGroup
) -> ShardedOptimiser:
    """ZeRO's stage 1: rows of each parameter over the ranks that hold it, as Megatron-LM has them.

    Of experts they are rows of each one's matrices, of a router with fewer rows than ranks columns.
    """
    rows = []
    for some, ranks in by_holders(parts, everyone, replicas):
        of_experts = is_expert(some[0])
        dims = [int(of_experts or (p.dim() > 1 and len(p) < ranks.size())) for p in some]
        axes = (DATA, CONTEXT) if of_experts else (DATA, CONTEXT, EXPERT)
        count = everyone.size()
        rows.append(RowBucket(some, ranks, parts.precision, count=count, dims=dims, axes=axes))
    return ShardedOptimiser(parts, rows)


def expert_step(parts: Parts, *, zero_stage: int) -> Stepper:
    """The shared step over cut experts, whose gradients are averaged over all ranks. Collective."""
    group, mesh = Group.join(parts.layout), mesh_of(parts.layout)
    axis, replicas = ExpertAxis(mesh[EXPERT].get_group()), mesh[DATA].get_group()
    everyone = dist.group.WORLD
    assert everyone is not None
    cut_experts(parts.model, axis)
    if not zero_stage:
        prepared, norm = parts.prepare(), partial(whole_norm, ranks=axis.ranks)
        return Stepper(
            prepared, group, reduction=mean_by_holders(parts, everyone, replicas), norm=norm
        )
    parts.materialise()
    rows = shard_by_holders(parts, everyone, replicas)
    return Stepper(parts.prepared(rows), group, reduction=rows.reduction, norm=norm_over)
