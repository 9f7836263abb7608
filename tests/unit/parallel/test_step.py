"""The shared step's parts, without ranks."""

from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from pipeline.parallel.mesh import Layout
from pipeline.parallel.state import capture
from pipeline.parallel.step import Stepper
from pipeline.parallel.types import Batch, Parts
from pipeline.precision import make_precision
from pipeline.precision.master import MasterWeights


def test_no_gradient_of_a_master_is_there_in_a_forward_pass() -> None:
    """They are as large as the model in fp32, and activations come on top of them."""
    model, kept = nn.Linear(2, 2), list[bool]()
    layout = Layout((("data", 1),), 1, "cpu", "gloo")
    parts = Parts(model, torch.optim.AdamW, layout, make_precision("amp_o2", "cpu"), 1.0)
    prepared = parts.prepare()
    assert isinstance(prepared.optimiser, MasterWeights)
    masters = prepared.optimiser.inner.param_groups[0]["params"]

    def forward(inputs: Tensor, targets: Tensor) -> Tensor:
        kept.append(any(master.grad is not None for master in masters))
        out: Tensor = model(inputs)
        return out

    stepper = Stepper(prepared, forward=forward)
    for _ in range(2):
        stepper.step([Batch(torch.ones(1, 2, dtype=torch.bfloat16), torch.ones(1, 2))])
    assert all(master.grad is not None for master in masters) and kept == [False, False]


class OnDevice(TorchDispatchMode):
    """Names of the operators that make memory on a device."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device, self.seen = device, list[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, Tensor) and out.device.type == self.device and not func.is_view:
            self.seen.append(str(func))
        return out


def test_a_captured_state_takes_no_memory_of_the_device() -> None:
    """A copy of the state on a GPU that it fills ended the run; `meta` stands for the GPU here."""
    with FakeTensorMode():
        model = nn.Module()
        model.weight = nn.Parameter(torch.empty(3, 2, device="meta"))
        optimiser = torch.optim.AdamW(model.parameters())
        optimiser.state[model.weight]["exp_avg"] = torch.empty_like(model.weight)
        with OnDevice("meta") as made:
            state = capture(
                model, optimiser, make_precision("fp32", "cpu"), lambda name, axes: True
            )
    assert {piece.name for piece in state.pieces} == {"weights/weight", "optimiser/weight/exp_avg"}
    assert {piece.numbers.device.type for piece in state.pieces} == {"cpu"}
    assert made.seen == []
