"""Precisions of torch: what they narrow, what they keep, what they refuse."""

import copy
from typing import Any

import pytest
import torch

from pipeline.errors import UnsupportedError
from pipeline.models.build import build_model
from pipeline.models.gpt2.model import Gpt2
from pipeline.precision import make_precision
from pipeline.precision.native import MasterWeights, Precision
from pipeline.study.spec import ModelSpec, OptimiserSpec
from pipeline.training.optimiser import make_optimiser

SPEC = ModelSpec("gpt2", num_layers=1, width=16, num_heads=2, context=8, vocab_size=40)
ADAMW = OptimiserSpec("adamw", 1e-3, 0.9, 0.999, 1e-8, 0.0, 1.0, "linear", 1)


def model_and_optimiser() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = build_model(SPEC, seed=0)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)


def back_propagate(
    precision: Precision, loss: torch.Tensor, optimiser: torch.optim.Optimizer
) -> None:
    with precision.scaled(loss, optimiser, last=True) as scaled:
        torch.autograd.backward(scaled)


def train(name: str, steps: int = 3) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    precision = make_precision(name, "cpu")
    model, optimiser = model_and_optimiser()
    optimiser = precision.prepare(model, optimiser)
    ids = torch.randint(0, 40, (2, 9), generator=torch.Generator().manual_seed(0))
    for _ in range(steps):
        optimiser.zero_grad()
        with precision.autocast():
            loss = model(ids[:, :-1], ids[:, 1:])
        back_propagate(precision, loss, optimiser)
        torch.nn.utils.clip_grad_norm_(list(precision.clip_parameters(optimiser)), 1.0)
        precision.step(optimiser)
    return model, optimiser


@pytest.mark.parametrize(
    ("name", "compute", "weights", "masters", "scaling"),
    [
        ("fp32", "float32", "float32", False, False),
        ("bf16", "bfloat16", "float32", False, False),
        ("fp16", "float16", "float32", False, True),
        ("amp_o1", "bfloat16", "float32", False, False),
        ("amp_o2", "bfloat16", "bfloat16", True, False),
        ("bf16_masters", "bfloat16", "bfloat16", True, False),
    ],
)
def test_the_record_says_what_ran(name, compute, weights, masters, scaling) -> None:
    info = make_precision(name, "cpu").info
    assert (info.library, info.compute_dtype, info.weights_dtype) == ("torch", compute, weights)
    assert (info.master_weights, info.loss_scaling) == (masters, scaling)
    model, _ = train(name, steps=1)
    assert {str(p.dtype)[6:] for p in model.parameters()} == {weights}


@pytest.mark.filterwarnings("ignore:.*GradScaler is enabled")
def test_amp_means_float16_with_scaling_on_cuda() -> None:
    info = make_precision("amp_o1", "cuda").info
    assert info.compute_dtype == "float16" and info.loss_scaling


@pytest.mark.parametrize("name", ["tf32", "apex_o1", "apex_o2"])
def test_what_cannot_run_on_a_cpu_is_refused_and_not_replaced(name) -> None:
    with pytest.raises(UnsupportedError, match="CUDA"):
        make_precision(name, "cpu")


def test_masters_keep_what_bfloat16_would_lose() -> None:
    """An update far below bf16's resolution adds up in the masters."""
    weight = torch.nn.Parameter(torch.ones(1))
    optimiser = MasterWeights.narrow(torch.optim.SGD([weight], lr=1e-4), torch.bfloat16)
    for _ in range(100):
        weight.grad = torch.ones(1, dtype=torch.bfloat16)
        optimiser.widen_gradients()
        optimiser.step()
    assert optimiser.inner.param_groups[0]["params"][0].item() == pytest.approx(0.99, rel=1e-5)
    assert weight.dtype == torch.bfloat16 and weight.item() == pytest.approx(0.99, abs=4e-3)


def test_masters_start_from_the_fp32_weights_and_embeddings_stay_tied() -> None:
    model, optimiser = model_and_optimiser()
    original = copy.deepcopy(model.state_dict())
    prepared = make_precision("amp_o2", "cpu").prepare(model, optimiser)
    assert isinstance(prepared, MasterWeights)
    masters = prepared.inner.param_groups[0]["params"]
    for (name, _), master in zip(model.named_parameters(), masters, strict=True):
        assert torch.equal(master, original[name])
    assert isinstance(model, Gpt2) and model.lm_head.weight is model.wte.weight


def test_a_scaler_s_numbers_stay_on_the_device() -> None:
    """Without this GradScaler asks the device for infinities in every step, and waits for it."""
    optimiser: Any = make_optimiser(ADAMW, build_model(SPEC, seed=0).parameters())
    masters: Any = MasterWeights.narrow(optimiser, torch.float16).inner
    assert optimiser._step_supports_amp_scaling and masters._step_supports_amp_scaling


def test_on_a_cpu_amp_o1_has_the_bits_of_bf16() -> None:
    """So the parity suite trains in one of them."""
    (one, _), (other, _) = train("amp_o1"), train("bf16")
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_gradients_of_bf16_masters_add_up_in_fp32_and_are_the_masters_own() -> None:
    """One of 257 is lost in bfloat16."""
    precision, weight = make_precision("bf16_masters", "cpu"), torch.nn.Parameter(torch.ones(1))
    module = torch.nn.ParameterList([weight])
    optimiser = precision.prepare(module, torch.optim.SGD([weight], lr=1.0))
    for factor in (256.0, 1.0):
        back_propagate(precision, (weight * factor).sum(), optimiser)
    [master] = precision.clip_parameters(optimiser)
    assert weight.dtype == torch.bfloat16 and master.dtype == torch.float32
    assert master.grad is weight.grad and master.grad is not None and master.grad.item() == 257.0


def test_wide_gradients_are_refused_where_torch_has_none(monkeypatch) -> None:
    monkeypatch.setattr("pipeline.precision.native.WIDE_GRADIENTS", False)
    with pytest.raises(
        UnsupportedError, match=r"bf16_masters needs Tensor.grad_dtype, which torch"
    ):
        make_precision("bf16_masters", "cpu")
