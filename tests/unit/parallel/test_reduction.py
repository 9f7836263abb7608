"""Buckets of gradients, of whose ranks this process is one: what the others send is made up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pipeline.parallel.group import buckets
from pipeline.parallel.mesh import BUCKET_BYTES
from pipeline.parallel.reduction import MeanBucket, Reduction

RANKS = 8


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """Buckets that were all-reduced among ranks that all have the same."""
    found: list[Tensor] = []

    def all_reduce(flat: Tensor, *, group: Any, async_op: bool) -> Any:
        found.append(flat.mul_(RANKS))
        return SimpleNamespace(wait=lambda: None)

    monkeypatch.setattr("torch.distributed.all_reduce", all_reduce)
    return found


def bucket(parameters: list[nn.Parameter], reduced_as: torch.dtype | None = None) -> MeanBucket:
    ranks: Any = SimpleNamespace(size=lambda: RANKS)
    return MeanBucket(parameters, ranks, reduced_as)


def test_tensors_travel_in_buckets_of_bounded_size() -> None:
    small = [torch.zeros(10) for _ in range(3)]
    large = torch.zeros(BUCKET_BYTES // 4)
    assert [len(one) for one in buckets([*small, large, *small])] == [4, 3]
    assert list(buckets([])) == []


def test_large_scaled_gradients_do_not_overflow_in_their_mean(sent) -> None:
    """Eight times 32,768 is more than float16 holds; their mean is not."""
    weight = nn.Parameter(torch.zeros(3, dtype=torch.float16))
    weight.grad = torch.full((3,), 32_768.0, dtype=torch.float16)
    Reduction([bucket([weight])]).finish()
    assert weight.grad.tolist() == [32_768.0] * 3


def test_of_several_micro_batches_the_last_backward_pass_reduces_the_last_weights_first(
    sent, monkeypatch
) -> None:
    """So those of a pipeline travel while it still computes, and none of them twice."""
    weights = [nn.Parameter(torch.full((1,), float(number))) for number in (1, 2)]
    reduction = Reduction(bucket([weight]) for weight in reversed(weights))
    for step in range(2):
        reduction.begin(passes=3)
        for passed in range(3):
            assert len(sent) == 2 * step, f"{passed} of 3 have passed"
            torch.autograd.backward(torch.sin(weights[0]) * weights[1])
        assert len(sent) == 2 * step + 2
        reduction.finish()
        first, last = (float(weight.grad) for weight in weights)  # type: ignore[arg-type]
        assert last == pytest.approx(3 * 0.8415, rel=1e-3) and first == pytest.approx(
            3.2418, rel=1e-3
        )
        for weight in weights:
            weight.grad = None
