"""Decay groups of the optimiser, and LAMB as written out here."""

from __future__ import annotations

from unittest import mock

import pytest
import torch
from torch import nn

from pipeline import strategies
from pipeline.errors import StudyError
from pipeline.models.build import build_model
from pipeline.training.optimiser import make_optimiser
from tests.parity.cases import DECAYED, LAMB, Case
from tests.parity.written_out import PlainLamb


@pytest.mark.parametrize("architecture", [None, "OPTForCausalLM"])
def test_biases_norms_and_nothing_else_keep_their_weights(architecture) -> None:
    model = Case("single", architecture=architecture).model
    named = dict(build_model(model, seed=0).named_parameters())
    optimiser = make_optimiser(DECAYED, named.values())
    decay = {p: group["weight_decay"] for group in optimiser.param_groups for p in group["params"]}
    kept = {name for name, parameter in named.items() if decay[parameter] == 0}
    vectors = {n for n in named if n.endswith("bias") or "norm" in n or "ln_" in n}
    assert kept == vectors
    assert {decay[parameter] for parameter in named.values()} == {0, DECAYED.weight_decay}


def test_lamb_is_the_algorithm_of_the_paper_tensor_by_tensor() -> None:
    """That of the parity suite, in twice as many digits."""
    generator = torch.Generator().manual_seed(3)
    shapes = [(5, 3), (4,), (2, 7), (3,)]
    plain = [
        nn.Parameter(torch.randn(shape, generator=generator, dtype=torch.float64))
        for shape in shapes
    ]
    plain[3].detach().zero_()  # its norm is zero in the first step
    own = [nn.Parameter(weight.detach().float()) for weight in plain]
    optimiser = make_optimiser(LAMB, own)
    with mock.patch("pipeline.training.optimiser.Lamb", PlainLamb):
        written_out = make_optimiser(LAMB, plain)
    for _ in range(5):
        for weight, parameter in zip(plain, own, strict=True):
            weight.grad = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
            parameter.grad = weight.grad.float()
        optimiser.step()
        written_out.step()
        for weight, parameter in zip(plain, own, strict=True):
            torch.testing.assert_close(parameter.double(), weight, rtol=1e-5, atol=1e-6)
    assert {*optimiser.state[own[0]]} == {"step", "exp_avg", "exp_avg_sq"}, "the slots of AdamW"


def test_deepspeed_refuses_it_and_says_why() -> None:
    with pytest.raises(StudyError, match=r"needs the norm of each tensor; use strategy sharded"):
        strategies.check([Case("deepspeed", lamb=True).spec(2)])
