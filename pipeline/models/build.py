"""A model of any family, the same on every rank."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from pipeline.models import family
from pipeline.study.spec import ATTENTION, ModelSpec


def build_model(spec: ModelSpec, seed: int) -> nn.Module:
    """A fresh model on the CPU; the same seed gives the same weights on every rank."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return family(spec).build(spec)


def compile_model(model: nn.Module, *, whole: bool = False) -> None:
    """Compile each block by itself, or the `whole` model, embedding and loss too, as one graph.

    One graph has one backward pass, after which all gradients are there at once, and nothing is
    left with which Horovod could overlap its reduction; torch cuts it at the buckets of its DDP.
    """
    import torch._dynamo  # slow, and seldom needed

    # Blocks need no cuts, for which torch knows no buckets under 1 MiB.
    torch._dynamo.config.optimize_ddp = whole
    blocks: Any = [model] if whole else model.blocks
    for block in blocks:
        block.compile()


def recompute_blocks(model: nn.Module, what: bool | str | tuple[int, ...] = True) -> None:
    """Have the backward pass compute again what `WorkloadSpec.recompute` says, and keep less.

    By default all of a block but its input, of every block. `ATTENTION`: what attention computes of
    query, key and value, a function without weights (Korthikanti et al. 2022, section 5). For that
    one torch's list of operators to save (`create_selective_checkpoint_contexts`) is no fit: it
    holds the results of all others, of which autograd keeps a part, and walks through the block
    again.

    Blocks stay the same objects with the same names of parameters, so that any strategy may cut or
    wrap them afterwards, and copies made for other devices recompute with weights of their own.
    Compile them after this.
    """
    any_model: Any = model
    if what == ATTENTION:
        any_model.wrap_attention(partial(checkpoint, use_reentrant=False))
        return
    for number, block in enumerate(any_model.blocks if what else ()):
        if isinstance(what, tuple) and number not in what:
            continue
        kind = type(block)
        block.__class__ = type(f"Recomputed{kind.__name__}", (_Recomputed, kind), {})


class _Recomputed(nn.Module):
    """Put before a block's own class, whose forward pass it runs twice (Chen et al. 2016).

    The second one has the random numbers and the autocast of the first (arXiv 1604.06174).
    """

    def forward(self, *given: Any, **named: Any) -> Any:
        return checkpoint(super().forward, *given, use_reentrant=False, **named)
