"""A mixture of experts: its router's loss adds up over any cut of a batch, and what is counted."""

from __future__ import annotations

from typing import Any

import torch
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

from pipeline import models
from pipeline.models import FP32, Formats
from pipeline.models.build import build_model, recompute_blocks
from pipeline.models.transformers import arithmetic, facts

MIXTRAL = models.examples()["MixtralForCausalLM"]
IDS = torch.randint(0, 302, (4, 16), generator=torch.Generator().manual_seed(1))
HALVES = IDS.chunk(2)


def own_loss(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """The router's loss as transformers has it, over all tokens of a call."""
    made = model.model(input_ids=ids, output_router_logits=True)
    loss: torch.Tensor = load_balancing_loss_func(made.router_logits, 4, 2)
    assert made.aux_loss == loss
    return loss


def test_each_sequence_has_the_loss_of_transformers_and_their_mean_is_trained() -> None:
    model: Any = build_model(MIXTRAL, 0)
    balance = torch.stack([own_loss(model, one[None]) for one in IDS]).mean()
    plain = model.loss(model.logits(IDS), IDS)
    torch.testing.assert_close(model(IDS, IDS), plain + 0.1 * balance, rtol=1e-6, atol=0)
    weighed = model(IDS, IDS, torch.ones(IDS.shape)) / IDS.numel()
    torch.testing.assert_close(weighed, model(IDS, IDS), rtol=1e-6, atol=0)


def test_halves_of_a_batch_add_up_to_it_which_those_of_transformers_do_not() -> None:
    model: Any = build_model(MIXTRAL, 0)
    gradients = []
    for parts in ((IDS,), HALVES):
        model.zero_grad()
        sum(model(ids, ids) / len(parts) for ids in parts).backward()
        gradients.append([p.grad for p in model.parameters()])
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-7)
    apart = sum(own_loss(model, ids) for ids in HALVES) / 2 - own_loss(model, IDS)
    assert abs(apart) > 1e-3


def test_a_token_counts_with_its_experts_alone_and_memory_holds_all() -> None:
    width, wide, groups = MIXTRAL.width, 48, 4 * MIXTRAL.width // MIXTRAL.num_heads
    expert, vocabulary = 3 * width * wide, MIXTRAL.vocab_size * width
    attention, router = 2 * width**2 + 2 * width * groups, 4 * width
    norms = (2 * MIXTRAL.num_layers + 1) * width
    whole, used = (
        2 * vocabulary + norms + MIXTRAL.num_layers * (attention + router + n * expert)
        for n in (4, 2)
    )
    assert (arithmetic.num_parameters(MIXTRAL), arithmetic.active_parameters(MIXTRAL)) == (
        whole,
        used,
    )
    products = used - norms - vocabulary
    assert arithmetic.product_weights(MIXTRAL) == products - MIXTRAL.num_layers * 2 * expert
    scores = 12 * MIXTRAL.num_layers * width * MIXTRAL.context
    assert models.flops_per_token(MIXTRAL) == 6 * products + scores


def test_experts_keep_what_was_counted_without_memory() -> None:
    """More than Llama's layers of the same attention, which torch does otherwise without memory."""
    formats = Formats(FP32, FP32, copies_weights=False)
    specs = [models.examples()[name] for name in ("MixtralForCausalLM", "LlamaForCausalLM")]
    counted = [arithmetic.activation_bytes(spec, 1, formats) for spec in specs]
    built: list[Any] = [build_model(spec, 0) for spec in specs]
    kept = [facts._kept(model, IDS[:1], autocast=False)["whole"] for model in built]
    assert kept[0] - kept[1] == counted[0] - counted[1] > 0


def test_experts_have_the_same_gradients_when_recomputed() -> None:
    gradients = []
    for recompute in (False, True):
        model = build_model(MIXTRAL, 3)
        recompute_blocks(model, recompute)
        model(IDS, IDS).backward()
        gradients.append([p.grad for p in model.parameters()])
    torch.testing.assert_close(*gradients, rtol=0, atol=0)
