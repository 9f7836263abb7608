"""The optimiser of every run, AdamW by torch or LAMB, which is written here, and its parts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from pipeline.parallel.collectives import collective
from pipeline.parallel.cut import holders
from pipeline.parallel.mesh import Layout
from pipeline.parallel.types import NOT_PROFILED, Parts, Phases, already
from pipeline.precision.native import Precision, local
from pipeline.study.spec import OptimiserSpec, RunSpec


def parts_of(
    spec: RunSpec, model: nn.Module, layout: Layout, precision: Precision,
    phases: Phases = NOT_PROFILED, materialise: Callable[[], None] = already,
) -> Parts:  # fmt: skip
    """The parts of a run's training, which its strategy spreads over ranks."""
    make = partial(make_optimiser, spec.optimiser)
    norm = spec.optimiser.max_grad_norm
    return Parts(model, make, layout, precision, norm, phases, materialise)


def make_optimiser(chosen: OptimiserSpec, parameters: Iterable[nn.Parameter]) -> Optimizer:
    """Fused AdamW (Loshchilov & Hutter 2019) or LAMB over these parameters, as in the study.

    A part of a parameter has as many dims as the whole, so every cut decays what one device does.
    """
    groups: Any = parameters
    if chosen.decay_matrices_only:
        decayed, rest = list[nn.Parameter](), list[nn.Parameter]()
        for parameter in parameters:
            (decayed if parameter.dim() > 1 else rest).append(parameter)
        groups = [{"params": decayed}, {"params": rest, "weight_decay": 0.0}]
    options: dict[str, Any] = {
        "lr": chosen.learning_rate,
        "betas": (chosen.beta1, chosen.beta2),
        "eps": chosen.eps,
        "weight_decay": chosen.weight_decay,
    }
    if chosen.name == "lamb":
        return Lamb(groups, **options)
    return AdamW(groups, fused=True, **options)


class Lamb(Optimizer):
    """LAMB (You et al. 2020, arXiv 1904.00962): Adam whose step is as long as each weight is.

    Adam's step with its decay is scaled for each tensor by its trust ratio: the norm of the weight
    over the norm of its step, one where either is zero. Both are norms of the whole tensor, of
    which a rank may hold a part. Slots and options are those of AdamW.
    """

    def __init__(self, params: Iterable[Any], **options: Any) -> None:
        super().__init__(params, options)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Step all parameters that have gradients. Collective where ranks hold parts of them."""
        own = [
            (parameter, group)
            for group in self.param_groups
            for parameter in group["params"]
            if parameter.grad is not None
        ]
        owners, groups = [owner for owner, _ in own], [group for _, group in own]
        if not owners:
            return
        for owner in owners:
            if not self.state[owner]:
                self.state[owner] = {
                    "step": torch.zeros((), device=owner.device),
                    "exp_avg": torch.zeros_like(owner),
                    "exp_avg_sq": torch.zeros_like(owner),
                }
        kept = [self.state[owner] for owner in owners]
        weights, gradients = list(map(local, owners)), [local(owner.grad) for owner in owners]
        means, squares = ([local(one[name]) for one in kept] for name in ("exp_avg", "exp_avg_sq"))
        counts = [one["step"] for one in kept]
        torch._foreach_add_(counts, 1)
        (mean_decay, square_decay), count = groups[0]["betas"], counts[0].double()
        torch._foreach_lerp_(means, gradients, 1 - mean_decay)
        torch._foreach_mul_(squares, square_decay)
        torch._foreach_addcmul_(squares, gradients, gradients, 1 - square_decay)
        updates = []  # Adam's steps of this rank's parts, decay included
        for weight, mean, square, group in zip(weights, means, squares, groups, strict=True):
            root = (square / (1 - square_decay**count)).sqrt_().add_(group["eps"])
            update = (mean / (1 - mean_decay**count)).div_(root)
            updates.append(update.add_(weight, alpha=group["weight_decay"]))
        # All norms at once: one message along an axis, not one for each tensor.
        lengths, steps = whole_norms([*owners, *owners], [*weights, *updates]).chunk(2)
        trust = torch.where((lengths > 0) & (steps > 0), lengths / steps, 1.0)
        for weight, update, group, ratio in zip(weights, updates, groups, trust, strict=True):
            weight.sub_(update.mul_(group["lr"] * ratio))


@collective
def whole_norms(owners: list[Tensor], parts: list[Tensor]) -> Tensor:
    """L2 norms, in float64, of the wholes of `parts`, which are cut as `owners` are. Collective."""
    squares = torch.stack(torch._foreach_norm(parts)).double() ** 2
    cut_over: dict[dist.ProcessGroup, list[int]] = {}
    for place, owner in enumerate(owners):
        for ranks in holders(owner):
            cut_over.setdefault(ranks, []).append(place)
    for ranks, places in cut_over.items():
        sums = squares[places]
        dist.all_reduce(sums, group=ranks)
        squares[places] = sums
    return squares.sqrt()
