"""A model of any family, the same on every rank."""

from __future__ import annotations

import torch
from torch import nn

from pipeline.models import family_module
from pipeline.study.spec import ModelSpec


def build_model(spec: ModelSpec, seed: int) -> nn.Module:
    """A fresh model on the CPU; the same seed gives the same weights on every rank."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: nn.Module = family_module(spec.family, "model").build(spec)
    return model
