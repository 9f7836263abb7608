"""Strategies built in one process: a small training, and groups of ranks that send nothing."""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import HashStore
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from pipeline import models
from pipeline.models.build import build_model
from pipeline.parallel.types import Parts
from pipeline.precision import make_precision
from pipeline.strategies.base import Strategy
from pipeline.study.spec import ModelSpec, OptimiserSpec, WorldSpec
from pipeline.training.optimiser import make_optimiser

MODEL = ModelSpec("gpt2", num_layers=4, width=32, num_heads=4, context=16, vocab_size=302)
OPTIMISER = OptimiserSpec("adamw", 1e-3, 0.9, 0.999, 1e-8, 0.0, 1.0, "linear", 1)
ON_ONE_RANK: dict[str, dict[str, Any]] = {
    "context": {"ranks": 1},
    "expert": {"ranks": 1},
    "hybrid": {"pipeline": 1, "tensor": 1},
}
"""Settings with which a strategy runs on one rank, where its defaults need more."""


def model_of(strategy: Strategy) -> ModelSpec:
    """`MODEL`, or as deep an example of a strategy that does not train it."""
    if not strategy.example:
        return MODEL
    return replace(models.examples()[strategy.example], num_layers=MODEL.num_layers)


@contextmanager
def fake_group(size: int) -> Iterator[int]:
    """torch's fake group, whose collectives send nothing.

    Of rank 0 always: DTensor remembers a process's place from one group to the next.
    """
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=size)
    try:
        yield size
    finally:
        dist.destroy_process_group()


@contextmanager
def group_alone() -> Iterator[None]:
    """A group of this process alone."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


def parts_of(
    strategy: Strategy, ranks: int, model: nn.Module | None = None, **options: Any
) -> Parts:
    """Parts for a strategy over so many ranks: `model_of` it in fp32 unless another is given."""
    made, make = model or build_model(model_of(strategy), 5), partial(make_optimiser, OPTIMISER)
    layout = strategy.layout(WorldSpec(ranks, 1, "cpu", "gloo", "loopback"))
    return Parts(made, make, layout, make_precision("fp32", "cpu"), 1.0, **options)


class Operators(TorchDispatchMode):
    """Keeps the operators that the host calls, each with what it returns."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.calls.append((func, out))
        return out


class Live(TorchDispatchMode):
    """Counts the bytes of storages on the host that operators have made and are still there."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.seen: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # it comes again with the local tensors
        given = {one.untyped_storage()._cdata for one in args if isinstance(one, torch.Tensor)}
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else (out,):
            if type(tensor) is torch.Tensor and tensor.device.type == "cpu":
                storage: Any = tensor.untyped_storage()
                key, size = storage._cdata, storage.nbytes()
                if key not in self.seen | given:
                    self.seen.add(key)
                    self.now += size
                    self.peak = max(self.peak, self.now)
                    weakref.finalize(storage, self.gone, key, size)
        return out

    def gone(self, key: int, size: int) -> None:
        self.seen.discard(key)
        self.now -= size
