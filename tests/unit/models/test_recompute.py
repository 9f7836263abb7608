"""Recomputed blocks: the same bits, also with dropout, and the FLOPs that they cost."""

from __future__ import annotations

from functools import partial
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from pipeline.models import family, flops_per_token
from pipeline.models.build import build_model, compile_blocks, recompute_blocks
from pipeline.study.spec import ModelSpec

MODEL = ModelSpec("gpt2", num_layers=2, width=32, num_heads=4, context=16, vocab_size=64)
IDS = torch.arange(64).view(4, 16)


def passes(recompute: bool, dropout: float = 0.0) -> tuple[Tensor, dict[str, Any]]:
    """Loss and gradients of one pass forward and backward."""
    model: Any = build_model(MODEL, 0)
    if dropout:
        for block in model.blocks:
            block.mlp = nn.Sequential(block.mlp, nn.Dropout(dropout))
    if recompute:
        recompute_blocks(model)
    torch.manual_seed(1)
    loss = model(IDS, IDS)
    torch.rand(3)  # what comes between the passes must not matter
    loss.backward()
    return loss.detach(), {name: p.grad for name, p in model.named_parameters()}


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_loss_and_gradients_have_the_same_bits(dropout) -> None:
    (loss, gradients), (again, recomputed) = (passes(r, dropout) for r in (False, True))
    assert torch.equal(loss, again) and gradients.keys() == recomputed.keys()
    for name, gradient in gradients.items():
        assert torch.equal(gradient, recomputed[name]), name


def test_a_mask_that_is_not_restored_is_noticed() -> None:
    """The mistake that the test above is there to catch."""
    forgetful = partial(checkpoint, preserve_rng_state=False)
    with mock.patch("pipeline.models.build.checkpoint", forgetful):
        _, recomputed = passes(True, 0.5)
    _, gradients = passes(False, 0.5)
    assert not torch.equal(gradients["wte.weight"], recomputed["wte.weight"])


def test_blocks_stay_what_they_are() -> None:
    model: Any = build_model(MODEL, 0)
    blocks, kinds = list(model.blocks), {type(block) for block in model.blocks}
    recompute_blocks(model)
    assert list(model.blocks) == blocks
    assert all(isinstance(block, tuple(kinds)) for block in blocks)
    compile_blocks(model)
    assert all(block._compiled_call_impl is not None for block in blocks)
    assert model._compiled_call_impl is None, "whole, no reduction overlaps its backward pass"
    replica = blocks[0]._replicate_for_data_parallel()
    assert type(replica) is type(blocks[0]) and "forward" not in vars(replica)


def test_what_is_recomputed_is_what_torch_counts() -> None:
    """Its counter leaves out attention on a CPU, of which one formula is a third of the other."""
    counted = []
    for recompute in (False, True):
        with FlopCounterMode(display=False) as counter:
            passes(recompute)
        counted.append(counter.get_total_flops())
    attention = 4.0 * MODEL.num_layers * MODEL.width * MODEL.context
    assert counted[0] == IDS.numel() * (flops_per_token(MODEL) - 3 * attention)
    more = family(MODEL).recomputed_flops_per_token(MODEL) - attention
    assert counted[1] - counted[0] == IDS.numel() * more
