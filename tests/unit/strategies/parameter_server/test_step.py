"""The root's mean of the gradients, without the other ranks."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pipeline.strategies.parameter_server.step import Star

RANKS, LARGE = 8, 32_768.0


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """What is sent to the root; it receives the same from each of the others."""
    found: list[torch.Tensor] = []

    def receive(into: torch.Tensor, rank: int) -> None:
        into.copy_(found[0])

    monkeypatch.setattr("torch.distributed.send", lambda flat, rank: found.append(flat.clone()))
    monkeypatch.setattr("torch.distributed.recv", receive)
    return found


def test_large_scaled_gradients_do_not_overflow_in_the_sum(sent: list[torch.Tensor]) -> None:
    """Eight times 32,768 is more than float16 holds; their mean is not, nor is it with DDP."""
    gradient = torch.full((3,), LARGE, dtype=torch.float16)
    for is_root in (False, True):
        model = SimpleNamespace(parameters=lambda: [SimpleNamespace(grad=gradient)])
        rank: Any = SimpleNamespace(
            group=SimpleNamespace(size=RANKS),
            is_root=is_root,
            model=model,
            precision=SimpleNamespace(reduced=None),
        )
        Star.push(rank)
    assert gradient.tolist() == [LARGE] * 3
