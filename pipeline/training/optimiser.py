"""The optimiser of every run, by itself so that benches make the same one without the loop."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn
from torch.optim import AdamW, Optimizer

from pipeline.study.spec import OptimiserSpec


def make_optimiser(chosen: OptimiserSpec, parameters: Iterable[nn.Parameter]) -> Optimizer:
    """Fused AdamW over these parameters, as in the study (Loshchilov & Hutter 2019)."""
    return AdamW(
        parameters,
        lr=chosen.learning_rate,
        betas=(chosen.beta1, chosen.beta2),
        eps=chosen.eps,
        weight_decay=chosen.weight_decay,
        fused=True,
    )
