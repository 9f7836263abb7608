"""The shared step's parts, without ranks."""

from threading import Thread

import torch
from torch import Tensor, nn

from pipeline.parallel.state import capture
from pipeline.parallel.step import within
from pipeline.precision import make_precision


class Dtype(nn.Module):
    """Says in which type a product is computed."""

    def forward(self, x: Tensor) -> str:
        return str((x @ x).dtype)


def test_autocast_is_entered_with_its_dtype_in_another_thread() -> None:
    """torch's DataParallel re-enters it there without the dtype: bf16 became fp16."""
    found: list[str] = []
    inside = within(Dtype(), make_precision("bf16", "cpu").autocast)

    def run() -> None:
        with torch.autocast("cpu", dtype=torch.float16):
            found.append(inside(torch.ones(2, 2)))

    thread = Thread(target=run)
    thread.start()
    thread.join()
    assert found == ["torch.bfloat16"]


def test_a_captured_state_is_a_copy_on_the_host() -> None:
    model = nn.Linear(2, 2)
    optimiser = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimiser.step()
    state = capture(model, optimiser, make_precision("fp32", "cpu"), lambda name, axes: True)
    found = {piece.name: piece.numbers for piece in state.pieces}
    assert {numbers.device.type for numbers in found.values()} == {"cpu"}
    with torch.no_grad():
        model.weight.zero_()
    assert found["weights/weight"].abs().sum() > 0
