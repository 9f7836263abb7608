"""What a strategy keeps out of its timed step: the wait for other ranks, and the mean loss."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

from pipeline import strategies
from pipeline.parallel.types import Batch
from tests.ranks import MODEL, ON_ONE_RANK, group_alone, parts_of

BATCH = Batch(*(torch.zeros(2, MODEL.context, dtype=torch.int64),) * 2)
SEVERAL = [n for n in strategies.names() if n != "single" and not strategies.load(n, {}).requires]
"""The strategies of several ranks that torch alone runs; a new file joins by itself."""


@pytest.fixture(params=SEVERAL)
def trainable(request: pytest.FixtureRequest) -> Iterator[Any]:
    """The strategy on one rank."""
    strategy = strategies.load(request.param, ON_ONE_RANK.get(request.param, {}))
    with group_alone():
        yield strategy.build(parts_of(strategy, 1))


def test_the_barrier_before_the_clock_is_one_of_all_ranks(trainable, monkeypatch) -> None:
    """Without it a rank's checkpoint is within the next step of the others."""
    waited: list[str] = []
    monkeypatch.setattr(dist, "barrier", lambda *_, **__: waited.append("all"))
    trainable.barrier()
    assert waited == ["all"]


def test_the_mean_loss_of_all_ranks_is_no_part_of_the_step(trainable, monkeypatch) -> None:
    done: list[str] = []
    mean = trainable.mean

    def noted(value: torch.Tensor) -> torch.Tensor:
        done.append("mean")
        return mean(value)

    monkeypatch.setattr(trainable, "mean", noted)
    trainable.step([BATCH])
    done.append("step")
    trainable.report()
    assert done == ["step", "mean"]
