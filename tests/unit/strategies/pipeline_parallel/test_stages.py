"""A model cut into stages in one process: what each rank keeps, and that nothing is lost."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch

from pipeline.models import num_parameters
from pipeline.models.build import build_model
from pipeline.strategies.pipeline_parallel.schedule import Stages
from pipeline.strategies.pipeline_parallel.stages import StagedModel
from pipeline.study.spec import ModelSpec
from tests.parity.cases import CUT, EXAMPLES

SPEC = ModelSpec("gpt2", num_layers=5, width=16, num_heads=2, context=8, vocab_size=30)


CONFIGS: dict[str, Any] = {name: EXAMPLES[name].config for name in CUT["pipeline_parallel"]} | {
    "GraniteForCausalLM": {"intermediate_size": 16, "num_key_value_heads": 2,
                           "embedding_multiplier": 3.0, "logits_scaling": 2.0},
    "Gemma2ForCausalLM": {"intermediate_size": 16, "num_key_value_heads": 2, "head_dim": 8},
}  # fmt: skip
"""Those of the suite, and two whose code scales embeddings or logits outside of all modules."""


def staged(ranks: int, chunks: int = 1, spec: ModelSpec = SPEC) -> list[StagedModel]:
    stages = Stages(ranks, chunks, spec.num_layers)
    return [StagedModel(build_model(spec, 3), stages, rank) for rank in range(ranks)]


def loss_of(
    parts: list[StagedModel], count: int, ids: torch.Tensor, *weights: torch.Tensor
) -> torch.Tensor:
    """Of all stages one after the other."""
    x = ids
    for number in range(count):
        x = parts[number % len(parts)].stage(number, nullcontext)(x)
    loss: torch.Tensor = parts[-1].model.loss(x, ids, *weights)
    return loss


@pytest.mark.parametrize(("ranks", "chunks"), [(1, 1), (3, 1), (2, 2), (1, 3)])
def test_stages_one_after_the_other_are_the_model(ranks, chunks) -> None:
    ids = torch.arange(2 * SPEC.context).view(2, -1) % SPEC.vocab_size
    loss = loss_of(staged(ranks, chunks), ranks * chunks, ids)
    assert torch.equal(loss, build_model(SPEC, 3)(ids, ids))


@pytest.mark.parametrize("name", CONFIGS)
def test_stages_of_a_model_of_transformers_are_the_model(name) -> None:
    """Bits of the loss, gradients of every parameter, and all names of the whole model."""
    spec = replace(SPEC, family="transformers", width=32, architecture=name, config=CONFIGS[name])
    ids = torch.arange(2 * SPEC.context).view(2, -1) % SPEC.vocab_size
    ids[:, 0] = 1  # of two heads, the target of the second one
    parts, whole = staged(2, 2, spec), build_model(spec, 3)
    weights = torch.ones(ids.shape)
    loss, expected = loss_of(parts, 4, ids, weights), whole(ids, ids, weights)
    assert torch.equal(loss, expected)
    for one in (loss, expected):
        one.backward()
    found: dict[str, torch.Tensor] = {}
    for part in parts:
        for key, parameter in part.model.named_parameters():
            assert key in part.entries
            gradient = parameter.grad
            assert gradient is not None, key
            found[key] = found[key] + gradient if key in found else gradient
    assert found.keys() == dict(whole.named_parameters()).keys()
    for key, parameter in whole.named_parameters():
        torch.testing.assert_close(found[key], parameter.grad, msg=key)


def test_every_parameter_has_one_owner_and_the_tied_one_a_copy() -> None:
    parts = staged(3)
    names = [name for name, _ in build_model(SPEC, 3).named_parameters()]
    for part in parts:
        assert list(part.entries) == names
    owners = [[part.rank for part in parts if part.owned(name)] for name in names]
    assert all(len(found) == 1 for found in owners)
    held = {n: [p.rank for p in parts if n in dict(p.model.named_parameters())] for n in names}
    assert held.pop("wte.weight") == [0, 2]
    assert all(len(ranks) == 1 for ranks in held.values())
    assert [part.tied for part in parts] == [["wte.weight"], [], ["wte.weight"]]
    assert all(p.model.lm_head.weight is p.model.wte.weight for p in (parts[0], parts[2]))


def test_a_rank_frees_what_others_hold() -> None:
    sizes = [sum(p.numel() for p in part.model.parameters()) for part in staged(3)]
    shared = SPEC.vocab_size * SPEC.width
    assert sum(sizes) == num_parameters(SPEC) + shared
    assert max(sizes) < num_parameters(SPEC) / 2


def test_one_rank_with_both_ends_has_no_copy() -> None:
    (part,) = staged(1, chunks=2)
    assert part.tied == []
    assert sum(p.numel() for p in part.model.parameters()) == num_parameters(SPEC)
