"""Decay groups of the optimiser, and LAMB as written out here."""

from __future__ import annotations

import pytest
import torch

from pipeline import strategies
from pipeline.errors import StudyError
from pipeline.models.build import build_model
from pipeline.training.optimiser import make_optimiser
from tests.parity.cases import DECAYED, LAMB, Case


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
    generator = torch.Generator().manual_seed(3)
    shapes = [(5, 3), (4,), (2, 7), (3,)]
    plain = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    plain[3].zero_()  # its norm is zero in the first step
    own = [torch.nn.Parameter(weight.float()) for weight in plain]
    optimiser = make_optimiser(LAMB, own)
    means, squares = ([torch.zeros_like(weight) for weight in plain] for _ in range(2))
    for step in range(1, 6):
        for weight, parameter, mean, square in zip(plain, own, means, squares, strict=True):
            gradient = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
            parameter.grad = gradient.float()
            mean.copy_(LAMB.beta1 * mean + (1 - LAMB.beta1) * gradient)
            square.copy_(LAMB.beta2 * square + (1 - LAMB.beta2) * gradient**2)
            update = (mean / (1 - LAMB.beta1**step)) / (
                (square / (1 - LAMB.beta2**step)).sqrt() + LAMB.eps
            )
            update += LAMB.weight_decay * weight if weight.dim() > 1 else 0
            ratio = weight.norm() / update.norm() if weight.norm() > 0 else 1.0
            weight -= LAMB.learning_rate * ratio * update
        optimiser.step()
        for weight, parameter in zip(plain, own, strict=True):
            torch.testing.assert_close(parameter.double(), weight, rtol=1e-5, atol=1e-6)
    state = optimiser.state[own[0]]
    assert set(state) == {"step", "exp_avg", "exp_avg_sq"}, "the slots of AdamW"
    assert float(state["step"]) == 5


def test_deepspeed_refuses_it_and_says_why() -> None:
    with pytest.raises(StudyError, match=r"needs the norm of each tensor; use strategy sharded"):
        strategies.check([Case("deepspeed", lamb=True).spec(2)])
