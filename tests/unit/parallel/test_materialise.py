"""A rank that keeps parts of the weights never holds all of them, from the first byte on."""

from __future__ import annotations

import weakref
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from pipeline import strategies
from pipeline.models.build import build_model
from pipeline.models.deferred import deferred_model
from pipeline.parallel.cut import cut_of
from pipeline.parallel.state import materialise
from pipeline.parallel.types import Parts
from pipeline.precision import make_precision
from pipeline.strategies.base import Strategy
from pipeline.study.spec import ModelSpec, OptimiserSpec, WorldSpec
from pipeline.training.optimiser import make_optimiser

RANKS = 4
MODEL = ModelSpec("gpt2", num_layers=4, width=32, num_heads=4, context=16, vocab_size=302)
OPTIMISER = OptimiserSpec("adamw", 1e-3, 0.9, 0.999, 1e-8, 0.0, 1.0, "linear", 1)
CPU = torch.device("cpu")


def cases() -> list[tuple[str, int]]:
    """Strategies and variants that cut the weights; a new file joins by itself."""
    found = []
    for name in strategies.names():
        for number, options in enumerate(({}, *strategies.load(name, {}).variants)):
            if strategies.load(name, dict(options)).cuts_weights:
                found.append((name, number))
    return found


class Live(TorchDispatchMode):
    """Counts the bytes of the storages on the host that operators have made and are still there."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.filled: tuple[int, int] | None = None
        self.seen: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # it comes again with the local tensors
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else (out,):
            if type(tensor) is torch.Tensor and tensor.device == CPU:
                self.count(tensor.untyped_storage())
        return out

    def count(self, storage: Any) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key not in self.seen:
            self.seen.add(key)
            self.now += size
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self.gone, key, size)

    def gone(self, key: int, size: int) -> None:
        self.seen.discard(key)
        self.now -= size


def built(strategy: Strategy, live: Live | None = None) -> nn.Module:
    """The model as the strategy leaves it on this rank."""
    world = WorldSpec(RANKS, 1, "cpu", "gloo", "loopback")
    fill: Any = lambda: None  # noqa: E731
    if live is not None:
        model, initial = deferred_model(MODEL, 5)

        def fill() -> None:
            materialise(model, initial.values, CPU)
            live.filled = live.filled or (live.now, live.peak)

    else:
        model = build_model(MODEL, 5)
    precision, make = make_precision("fp32", "cpu"), partial(make_optimiser, OPTIMISER)
    parts = Parts(model, make, strategy.layout(world), precision, 1.0, materialise=fill)
    strategy.build(parts)
    return model


def local(parameter: Any) -> torch.Tensor:
    return parameter.to_local() if hasattr(parameter, "to_local") else parameter.detach()


@pytest.fixture
def group():
    """Rank 0, as in other tests: DTensor remembers a process's place from one group to the next."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize(("name", "variant"), cases())
def test_a_rank_gets_its_parts_and_never_the_whole(group, name: str, variant: int) -> None:
    options = dict(({}, *strategies.load(name, {}).variants)[variant])
    strategy = strategies.load(name, options)
    expected = built(strategy)
    own, whole = dict(expected.named_parameters()), build_model(MODEL, 5)
    with Live() as live:
        found = built(strategy, live)
    parts = dict(found.named_parameters())
    assert list(parts) == list(own)
    for key, parameter in parts.items():
        assert torch.equal(local(parameter), local(own[key])), key
        assert (cut_of(parameter) is None) == (cut_of(own[key]) is None)
        assert type(parameter) is type(own[key])
    kept = sum(local(p).nbytes for p in parts.values())
    largest = max(p.nbytes for p in whole.parameters())
    assert live.filled is not None
    now, peak = live.filled
    assert now >= kept, "the count sees what is there"
    if kept < 0.7 * sum(p.nbytes for p in whole.parameters()):  # a variant may have parts of one
        assert peak < sum(p.nbytes for p in whole.parameters())
    assert peak <= kept + 3 * largest
