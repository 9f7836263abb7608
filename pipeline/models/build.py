"""A model of any family, the same on every rank."""

from __future__ import annotations

from typing import Any

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


def compile_blocks(model: nn.Module) -> None:
    """Compile each block by itself.

    A model compiled whole has one backward pass, after which all gradients are there at once, and
    nothing is left with which DDP and Horovod could overlap their reduction.
    """
    blocks: Any = model.blocks
    for block in blocks:
        block.compile()
