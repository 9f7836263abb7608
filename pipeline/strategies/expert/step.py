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

from pipeline.parallel.cut import cut, cut_of
from pipeline.parallel.group import Group, buckets, mesh_of
from pipeline.parallel.mesh import DATA, EXPERT
from pipeline.parallel.reduction import MeanBucket, Reduction
from pipeline.parallel.step import Stepper, whole_norm
from pipeline.parallel.types import Parts


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
        expert, order = chosen.flatten().sort(stable=True)
        going = torch.bincount(expert, minlength=self.size * own)
        coming = self.exchange(going, [own] * self.size, [own] * self.size)
        given, taken = (each.view(self.size, own).sum(1).tolist() for each in (going, coming))
        arrived = exchanged(x[order // count], self, given, taken)
        # Of each rank those for the first expert come first.
        numbers = torch.arange(own, device=x.device).repeat(self.size).repeat_interleave(coming)
        outputs = run(arrived, numbers.unsqueeze(1), arrived.new_ones((len(arrived), 1)))
        # Weighted where the router is, so that its gradient needs no message of its own.
        back = exchanged(outputs, self, taken, given)[order.argsort()]
        return (back.view(len(x), count, -1) * weights.unsqueeze(-1)).sum(1).to(x.dtype)


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, axis: ExpertAxis, given: list[int], taken: list[int]
    ) -> Tensor:
        ctx.back = partial(axis.exchange, given=taken, taken=given)
        return axis.exchange(rows, given, taken)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        return ctx.back(gradients[0]), None, None, None


def exchanged(rows: Tensor, axis: ExpertAxis, given: list[int], taken: list[int]) -> Tensor:
    """`ExpertAxis.exchange`, whose backward pass gives the gradients back."""
    arrived: Tensor = _Exchange.apply(rows, axis, given, taken)  # type: ignore[no-untyped-call]
    return arrived


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


def averaged(parts: Parts, replicas: dist.ProcessGroup) -> Reduction:
    """Mean gradients, those of experts over their replicas alone; see `reduction.mean_of`.

    A rank's experts have had the tokens of all ranks of the axis: the sum over these is there, and
    is divided by the number of all ranks too.
    """
    everyone, precision = dist.group.WORLD, parts.precision
    assert everyone is not None
    backwards = list(parts.model.parameters())[::-1]
    made = [
        MeanBucket(some, ranks, precision.reduced, everyone.size())
        for ranks, of_experts in ((everyone, False), (replicas, True))
        for some in buckets(p for p in backwards if (cut_of(p) is not None) == of_experts)
    ]
    place = {parameter: number for number, parameter in enumerate(backwards)}
    return Reduction(sorted(made, key=lambda bucket: place[bucket.parameters[-1]]))


class ExpertStepper(Stepper):
    """The shared step over cut experts."""

    def __init__(self, parts: Parts) -> None:
        """Cut the experts along the expert axis, average over all ranks. Collective."""
        group, mesh = Group.join(parts.layout), mesh_of(parts.layout)
        self.axis = ExpertAxis(mesh[EXPERT].get_group())
        cut_experts(parts.model, self.axis)
        prepared = parts.prepare()
        super().__init__(prepared, group, reduction=averaged(parts, mesh[DATA].get_group()))

    def clip(self, parameters: list[Tensor]) -> Tensor:
        """Clip by the norm of the whole: those of experts are added over ranks."""
        return self.clip_by(whole_norm(parameters, self.axis.ranks), parameters)
