"""What NVIDIA Apex's `amp` does with gradients at level O2, for machines without Apex or CUDA.

Written after the published `apex/amp/_process_optimizer.py` and `handle.py` so that
`pipeline.precision.apex` meets the same order of events: weights are narrowed in place, the
optimiser's parameters become fp32 masters at first use, `zero_grad` detaches and zeroes the model's
gradients in place, `scale_loss` drops them before and copies them to the masters after a backward
pass, unless it delays that. The loss scale is fixed, because no gradient of the suite overflows.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

SCALE = 128.0


@contextmanager
def installed() -> Iterator[None]:
    """Runs of this context in `apex_o2` find this module as `apex.amp`, and a CPU will do."""
    from pipeline.precision.apex import ApexAmp

    make = "pipeline.training.loop.make_precision"
    sys.modules["apex"] = ModuleType("apex")
    sys.modules["apex.amp"] = sys.modules[__name__]
    try:
        with mock.patch(make, lambda name, _: ApexAmp(name, "cuda")):
            yield
    finally:
        # Not mock.patch.dict, which would also drop what was imported meanwhile.
        del sys.modules["apex"], sys.modules["apex.amp"]


def initialize(
    model: nn.Module, optimiser: Optimizer, opt_level: str, verbosity: int
) -> tuple[nn.Module, Optimizer]:
    """Narrow the weights and patch forward, `zero_grad` and `step` of these very objects."""
    assert opt_level == "O2"
    for parameter in model.parameters():
        parameter.data = parameter.data.half()
    forward, step = model.forward, optimiser.step
    patched: Any = optimiser
    stash = SimpleNamespace(lazy_init_called=False, scaled=False, all_fp32_from_fp32_params=[])
    patched._amp_stash = stash
    patched._lazy_init_maybe_master_weights = lambda: make_masters(optimiser)

    def zero_grad() -> None:
        lazy_init(optimiser)
        for parameter in stash.all_fp16_params:
            if parameter.grad is not None:
                parameter.grad.detach_()
                parameter.grad.zero_()
        drop(stash.all_fp32_from_fp16_params)

    def step_masters() -> None:
        step()
        with torch.no_grad():
            for parameter, master in pairs(optimiser):
                parameter.copy_(master)
        drop(stash.all_fp32_from_fp16_params)

    vars(model)["forward"] = lambda *inputs: forward(*inputs).float()
    patched.zero_grad, patched.step = zero_grad, step_masters
    return model, optimiser


def make_masters(optimiser: Optimizer) -> None:
    """Put fp32 copies in the place of the optimiser's parameters."""
    patched: Any = optimiser
    narrow, masters = [], []
    for group in optimiser.param_groups:
        narrow += group["params"]
        group["params"] = [p.detach().clone().float().requires_grad_() for p in group["params"]]
        masters += group["params"]
    patched._amp_stash.all_fp16_params = narrow
    patched._amp_stash.all_fp32_from_fp16_params = masters


@contextmanager
def scale_loss(loss: Tensor, optimiser: Optimizer, delay_unscale: bool) -> Iterator[Tensor]:
    """The scaled loss; at the end the masters hold the unscaled gradients."""
    patched: Any = optimiser
    stash = patched._amp_stash
    if not delay_unscale and not stash.scaled:
        lazy_init(optimiser)
        drop(stash.all_fp16_params)
    yield loss.float() * SCALE
    stash.scaled = delay_unscale
    if not delay_unscale:
        for parameter, master in pairs(optimiser):
            master.grad = parameter.grad.float() / SCALE


def master_params(optimiser: Optimizer) -> Iterator[Tensor]:
    """The optimiser's parameters as they are now."""
    for group in optimiser.param_groups:
        yield from group["params"]


def state_dict() -> dict[str, Any]:
    """Of the one loss scaler."""
    return {"loss_scaler0": {"loss_scale": SCALE, "unskipped": 0}}


def load_state_dict(state: dict[str, Any]) -> None:
    """Nothing changes."""
    assert state == state_dict()


def lazy_init(optimiser: Optimizer) -> None:
    """Make the masters unless they are there."""
    patched: Any = optimiser
    if not patched._amp_stash.lazy_init_called:
        patched._lazy_init_maybe_master_weights()
        patched._amp_stash.lazy_init_called = True


def pairs(optimiser: Any) -> Iterator[tuple[Any, Tensor]]:
    """Model weights with their masters."""
    stash = optimiser._amp_stash
    yield from zip(stash.all_fp16_params, stash.all_fp32_from_fp16_params, strict=True)


def drop(tensors: list[Tensor]) -> None:
    """Forget these tensors' gradients."""
    for tensor in tensors:
        tensor.grad = None
