"""A model cut into stages in one process: nothing is lost. Other classes: `tests/parity`."""

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch

from pipeline.models.build import build_model
from pipeline.strategies.pipeline_parallel.plan import Stages
from pipeline.strategies.pipeline_parallel.stages import StagedModel
from pipeline.study.spec import ModelSpec

SPEC = ModelSpec("gpt2", num_layers=5, width=16, num_heads=2, context=8, vocab_size=30)


CONFIGS: dict[str, Any] = {
    "GraniteForCausalLM": {"intermediate_size": 16, "num_key_value_heads": 2,
                           "embedding_multiplier": 3.0, "logits_scaling": 2.0},
    "Gemma2ForCausalLM": {"intermediate_size": 16, "num_key_value_heads": 2, "head_dim": 8},
}  # fmt: skip
"""Two whose code scales embeddings or logits outside of all modules."""


@pytest.mark.parametrize("name", CONFIGS)
def test_stages_one_after_the_other_are_the_model(name) -> None:
    """Bits of the loss, gradients of every parameter, and all names of the whole model."""
    own = {"architecture": name, "config": CONFIGS[name]}
    spec = replace(SPEC, family="transformers", width=32, num_heads=8, **own)
    ids = torch.arange(2 * SPEC.context).view(2, -1) % SPEC.vocab_size
    stages, weights = Stages(2, 2, spec.num_layers, (1, 1, 2, 1)), torch.ones(ids.shape)
    parts = [StagedModel(build_model(spec, 3), stages, rank) for rank in range(2)]
    x = ids
    for number in range(4):
        x = parts[number % 2].stage(number, nullcontext)(x)
    whole = build_model(spec, 3)
    loss, expected = parts[-1].model.loss(x, ids, weights), whole(ids, ids, weights)
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
