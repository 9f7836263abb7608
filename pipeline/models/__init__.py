"""Single-device models, one file per family; none of them knows about ranks.

`build_model(spec, seed)` finds the family by the file's stem. A family module offers
`build(spec) -> nn.Module` whose `forward(inputs, targets)` returns the mean loss, and
`flops_per_token(spec) -> float`.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

from pipeline.errors import StudyError

if TYPE_CHECKING:
    from torch import nn

    from pipeline.spec import ModelSpec


def _family(name: str) -> ModuleType:
    try:
        return importlib.import_module(f"{__name__}.{name}")
    except ModuleNotFoundError:
        raise StudyError(
            f"model family {name!r} has no file pipeline/models/{name}.py; "
            "add it or fix model.family"
        ) from None


def build_model(spec: ModelSpec, seed: int) -> nn.Module:
    """A fresh model on the CPU; the same seed gives the same weights on every rank."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: nn.Module = _family(spec.family).build(spec)
    return model


def flops_per_token(spec: ModelSpec) -> float:
    """Model FLOPs of one forward and backward pass, per token."""
    return float(_family(spec.family).flops_per_token(spec))
