"""Recomputed blocks and attention: the same bits, also with dropout, and the FLOPs they cost."""

from __future__ import annotations

from functools import partial
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from pipeline.models import family, flops_per_token
from pipeline.models.build import build_model, compile_model, recompute_blocks
from pipeline.models.gpt2.model import attend
from pipeline.study.spec import ATTENTION, ModelSpec

MODEL = ModelSpec("gpt2", num_layers=2, width=32, num_heads=4, context=16, vocab_size=64)
IDS = torch.arange(64).view(4, 16)


def passes(recompute: Any, dropout: float = 0.0) -> tuple[Tensor, dict[str, Any]]:
    """Loss and gradients of one pass forward and backward; dropout in both halves of a block."""

    def dropped(*given: Any) -> Tensor:
        return nn.functional.dropout(attend(*given), dropout)

    with mock.patch("pipeline.models.gpt2.model.attend", dropped if dropout else attend):
        model: Any = build_model(MODEL, 0)
        if dropout:
            for block in model.blocks:
                block.mlp = nn.Sequential(block.mlp, nn.Dropout(dropout))
        recompute_blocks(model, recompute)
    torch.manual_seed(1)
    loss = model(IDS, IDS)
    torch.rand(3)  # what comes between the passes must not matter
    loss.backward()
    return loss.detach(), {name: p.grad for name, p in model.named_parameters()}


@pytest.mark.parametrize("what", [True, ATTENTION, (1,)])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_loss_and_gradients_have_the_same_bits(dropout, what) -> None:
    (loss, gradients), (again, recomputed) = (passes(r, dropout) for r in (False, what))
    assert torch.equal(loss, again) and gradients.keys() == recomputed.keys()
    for name, gradient in gradients.items():
        assert torch.equal(gradient, recomputed[name]), name


@pytest.mark.parametrize("what", [True, ATTENTION])
def test_a_mask_that_is_not_restored_is_noticed(what) -> None:
    """The mistake that the test above is there to catch."""
    forgetful = partial(checkpoint, preserve_rng_state=False)
    with mock.patch("pipeline.models.build.checkpoint", forgetful):
        _, recomputed = passes(what, 0.5)
    _, gradients = passes(False, 0.5)
    assert not torch.equal(gradients["wte.weight"], recomputed["wte.weight"])


def test_a_kept_query_that_is_altered_between_the_passes_is_noticed() -> None:
    model: Any = build_model(MODEL, 0)
    recompute_blocks(model, ATTENTION)
    kept: list[Tensor] = []
    model.blocks[0].attn.c_attn.register_forward_hook(lambda *given: kept.append(given[-1]))
    loss = model(IDS, IDS)
    kept[0].detach().add_(1)
    with pytest.raises(RuntimeError, match="modified inplace"):
        loss.backward()


def test_blocks_stay_what_they_are() -> None:
    model: Any = build_model(MODEL, 0)
    blocks, kinds = list(model.blocks), {type(block) for block in model.blocks}
    recompute_blocks(model)
    assert list(model.blocks) == blocks
    assert all(isinstance(block, tuple(kinds)) for block in blocks)
    compile_model(model)
    assert all(block._compiled_call_impl is not None for block in blocks)
    assert model._compiled_call_impl is None, "whole, no reduction overlaps its backward pass"
    replica = blocks[0]._replicate_for_data_parallel()
    assert type(replica) is type(blocks[0]) and "forward" not in vars(replica)


def test_what_is_recomputed_is_what_torch_counts() -> None:
    """Its counter leaves out attention on a CPU, of which one formula is a third of the other."""
    counted = []
    for recompute in (False, True, (0,)):
        with FlopCounterMode(display=False) as counter:
            passes(recompute)
        counted.append(counter.get_total_flops())
    attention = 4.0 * MODEL.num_layers * MODEL.width * MODEL.context
    assert counted[0] == IDS.numel() * (flops_per_token(MODEL) - 3 * attention)
    more = family(MODEL).recomputed_flops_per_token(MODEL) - attention
    assert counted[1] - counted[0] == IDS.numel() * more
    assert counted[2] - counted[0] == IDS.numel() * more / 2


@pytest.mark.parametrize(("kernel", "share"), [("FLASH_ATTENTION", 1.0), ("MATH", 0.5)])
def test_attention_is_recomputed_whole_or_but_for_its_last_product(kernel, share) -> None:
    """A fused kernel is one operator; written out, torch stops when it has the scores."""

    def fused(q: Any, *_: Any, **__: Any) -> int:
        return int(4 * torch.Size(q).numel() * q[2])

    own = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: fused}
    counted = []
    for what in (False, ATTENTION):
        counter = FlopCounterMode(display=False, custom_mapping=own)
        with sdpa_kernel(getattr(SDPBackend, kernel)), counter:
            passes(what)
        counted.append(counter.get_total_flops())
    more = family(MODEL).recomputed_flops_per_token(MODEL, ATTENTION)
    assert counted[1] - counted[0] == share * IDS.numel() * more > 0
