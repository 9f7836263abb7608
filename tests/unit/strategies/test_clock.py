"""What a strategy keeps out of its timed step: the wait for other ranks, and the mean loss."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from pipeline import strategies
from pipeline.models.build import build_model
from pipeline.parallel.types import Batch, Parts
from pipeline.precision import make_precision
from pipeline.study.spec import ModelSpec, OptimiserSpec, WorldSpec
from pipeline.training.optimiser import make_optimiser

MODEL = ModelSpec("gpt2", num_layers=2, width=16, num_heads=2, context=8, vocab_size=31)
OPTIMISER = OptimiserSpec("adamw", 1e-3, 0.9, 0.999, 1e-8, 0.0, 1.0, "linear", 1)
WORLD = WorldSpec(1, 1, "cpu", "gloo", "loopback")
BATCH = Batch(*(torch.zeros(2, MODEL.context, dtype=torch.int64),) * 2)


@pytest.fixture
def group() -> Iterator[None]:
    """A group of this process alone."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def several() -> list[str]:
    """The strategies of several ranks that torch alone runs; a new file joins by itself."""
    return [n for n in strategies.names() if n != "single" and not strategies.load(n, {}).requires]


ALONE: dict[str, dict[str, Any]] = {"hybrid": {"pipeline": 1, "tensor": 1}}
"""Settings with which a strategy runs on one rank, where its defaults need more."""


def built(name: str) -> Any:
    """The strategy on one rank."""
    strategy = strategies.load(name, ALONE.get(name, {}))
    model, make = build_model(MODEL, 5), partial(make_optimiser, OPTIMISER)
    precision = make_precision("fp32", "cpu")
    return strategy.build(Parts(model, make, strategy.layout(WORLD), precision, 1.0))


@pytest.mark.parametrize("name", several())
def test_the_barrier_before_the_clock_is_one_of_all_ranks(group, monkeypatch, name) -> None:
    """Without it a rank's checkpoint is within the next step of the others."""
    trainable, waited = built(name), list[str]()
    monkeypatch.setattr(dist, "barrier", lambda *_, **__: waited.append("all"))
    trainable.barrier()
    assert waited == ["all"]


@pytest.mark.parametrize("name", several())
def test_the_mean_loss_of_all_ranks_is_no_part_of_the_step(group, monkeypatch, name) -> None:
    trainable, done = built(name), list[str]()
    mean = trainable.mean

    def noted(value: torch.Tensor) -> torch.Tensor:
        done.append("mean")
        return mean(value)

    monkeypatch.setattr(trainable, "mean", noted)
    trainable.step([BATCH])
    done.append("step")
    trainable.report()
    assert done == ["step", "mean"]
