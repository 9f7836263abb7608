"""Model families, one folder each; none of them knows about ranks.

A family's `model.py` has `build(spec) -> nn.Module`, whose `forward(inputs, targets)` returns the
mean loss and whose `blocks` are the layers that repeat. Its `arithmetic.py`, without torch, has
`num_parameters(model)`, `flops_per_token(model)`, `activation_bytes(model, sequences, formats)` and
`logit_bytes(model, sequences)`.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

from pipeline.errors import StudyError

if TYPE_CHECKING:
    from torch import nn

    from pipeline.study.spec import ModelSpec


def arithmetic(model: ModelSpec) -> ModuleType:
    """The sizes of the model's family; raises StudyError for an unknown one."""
    return _module(model.family, "arithmetic")


def build_model(spec: ModelSpec, seed: int) -> nn.Module:
    """A fresh model on the CPU; the same seed gives the same weights on every rank."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: nn.Module = _module(spec.family, "model").build(spec)
    return model


def num_parameters(model: ModelSpec) -> int:
    """Trainable parameters, those that two layers share counted once."""
    return int(arithmetic(model).num_parameters(model))


def flops_per_token(model: ModelSpec) -> float:
    """Model FLOPs of one forward and backward pass, per token."""
    return float(arithmetic(model).flops_per_token(model))


def _module(family: str, part: str) -> ModuleType:
    try:
        return importlib.import_module(f"{__name__}.{family}.{part}")
    except ModuleNotFoundError:
        raise StudyError(
            f"model family {family!r} has no file pipeline/models/{family}/{part}.py; "
            "add it or fix model.family"
        ) from None
