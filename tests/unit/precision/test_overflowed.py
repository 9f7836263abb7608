"""A rank whose own gradients are finite skips the step with the others."""

import pytest
import torch

from pipeline.precision import make_precision


@pytest.mark.parametrize(("norm", "steps"), [(1.0, True), (float("inf"), False)])
def test_a_norm_that_is_not_finite_skips_the_step(norm: float, steps: bool) -> None:
    precision = make_precision("fp16", "cpu")
    weight = torch.nn.Parameter(torch.ones(2))
    optimiser = precision.prepare(torch.nn.Module(), torch.optim.SGD([weight], lr=0.1))
    with precision.scaled(weight.sum(), optimiser, last=True) as loss:
        torch.autograd.backward(loss)
    precision.overflowed(optimiser, torch.tensor(norm))
    precision.step(optimiser)
    assert bool((weight != 1).all()) == steps
