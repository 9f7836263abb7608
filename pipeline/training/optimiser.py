"""The optimiser of every run, by itself so that benches make the same one without the loop."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.optim import AdamW, Optimizer

from pipeline.study.spec import OptimiserSpec
from pipeline.training.lamb import Lamb


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
    return (
        Lamb(groups, **options) if chosen.name == "lamb" else AdamW(groups, fused=True, **options)
    )
