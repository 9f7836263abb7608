"""A checkpoint's pieces on one rank of four: its own share of the state, never more."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from pipeline import strategies
from pipeline.errors import StudyError
from pipeline.models.build import build_model
from pipeline.parallel.state import capture, restore
from pipeline.parallel.types import Parts, Trainable, slot_name, weight_name
from pipeline.precision import make_precision
from pipeline.study.spec import ModelSpec, OptimiserSpec, WorldSpec
from pipeline.training import checkpoint
from pipeline.training.optimiser import make_optimiser
from pipeline.training.shard_files import SavedShards
from tests.shards import shards_of

RANKS = 4
MODEL = ModelSpec("gpt2", num_layers=4, width=32, num_heads=4, context=16, vocab_size=302)
OPTIMISER = OptimiserSpec("adamw", 1e-3, 0.9, 0.999, 1e-8, 0.0, 1.0, "linear", 1)

SHARES = {
    ("ddp", ()): 1.0,
    ("sharded", (("stage", 1),)): 0.51,
    ("sharded", (("stage", 2),)): 0.26,
    ("sharded", (("stage", 3),)): 0.26,
    ("tensor", ()): 0.28,
    ("pipeline_parallel", ()): 0.40,
    ("hybrid", ()): 0.30,
    ("hybrid", (("tensor", 1), ("zero_stage", 1))): 0.39,
}
"""The largest part of the state that a rank may keep; the first stage has the embedding."""


class Live(TorchDispatchMode):
    """Counts the bytes of the storages that operators make and that are still there."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.seen: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(kind is not torch.Tensor and hasattr(kind, "full_tensor") for kind in types):
            return NotImplemented  # it comes again with the local tensors
        given = {
            tensor.untyped_storage()._cdata for tensor in args if isinstance(tensor, torch.Tensor)
        }
        out = func(*args, **(kwargs or {}))
        if type(out) is torch.Tensor:
            storage = out.untyped_storage()
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


@pytest.fixture
def group() -> Iterator[None]:
    """Rank 0, as in other tests: DTensor remembers a process's place from one group to the next."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    yield
    dist.destroy_process_group()


def stepped(name: str, options: dict[str, Any]) -> Trainable:
    """A strategy on this rank whose optimiser has its slots."""
    strategy = strategies.load(name, options)
    layout = strategy.layout(WorldSpec(RANKS, 1, "cpu", "gloo", "loopback"))
    make = partial(make_optimiser, OPTIMISER)
    model = build_model(MODEL, 5)
    made = strategy.build(Parts(model, make, layout, make_precision("fp32", "cpu"), 1.0))
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    for chosen in made.optimiser.param_groups:
        chosen["lr"] = 0.0
    made.optimiser.step()
    return made


@pytest.mark.parametrize(("name", "options"), SHARES)
def test_a_rank_keeps_its_own_share_and_never_more(group, name, options) -> None:
    trainable = stepped(name, dict(options))
    whole = 3 * sum(p.nbytes for p in build_model(MODEL, 5).parameters())
    with Live() as live:
        shards = trainable.shards()
    kept = sum(piece.numbers.nbytes for piece in shards.pieces)
    assert live.now >= kept, "the count sees what is there"
    assert live.peak <= kept + 64, "nothing else is made for it, not even for a while"
    assert kept <= SHARES[name, options] * whole + 4 * len(shards.pieces)


@pytest.mark.parametrize(("name", "options"), SHARES)
def test_a_rank_reads_what_it_holds_and_no_more(group, tmp_path, monkeypatch, name, options):
    """From whole tensors, as one device writes them; under ZeRO's stage 1 its rows twice."""
    tensors = {}
    for key, parameter in build_model(MODEL, 5).named_parameters():
        tensors[weight_name(key)] = torch.rand_like(parameter)
        for slot in ("exp_avg", "exp_avg_sq"):
            tensors[slot_name(key, slot)] = torch.rand_like(parameter)
        tensors[slot_name(key, "step")] = torch.tensor(7.0)
    checkpoint.save(tmp_path, 1, shards_of(tensors), "a")
    real, numbers = SavedShards.read, list[int]()

    def read(self: SavedShards, name: str, offsets: Any, shape: Any) -> torch.Tensor:
        numbers.append(math.prod(shape))
        return real(self, name, offsets, shape)

    monkeypatch.setattr(SavedShards, "read", read)
    trainable = stepped(name, dict(options))
    trainable.load(checkpoint.load(tmp_path, 1))
    shards = trainable.shards()
    for piece in shards.pieces:
        ends = zip(piece.offsets, piece.numbers.shape, strict=True)
        box = tensors[piece.name][tuple(slice(start, start + n) for start, n in ends)]
        assert torch.equal(piece.numbers, box), piece.name
    kept = sum(piece.numbers.numel() for piece in shards.pieces)
    assert kept <= sum(numbers) <= 1.25 * kept


@pytest.mark.parametrize("before", ["fp32", "amp_o2", "bf16_masters"])
@pytest.mark.parametrize("after", ["fp32", "amp_o2", "bf16_masters"])
def test_masters_and_weights_stand_for_each_other(tmp_path, before, after) -> None:
    """FSDP2 saves the masters of its narrow weights as weights, others save both."""
    made = []
    for precision in (before, after):
        model = torch.nn.Linear(2, 3)
        chosen = make_precision(precision, "cpu")
        optimiser = chosen.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.0))
        for parameter in chosen.clip_parameters(optimiser):
            parameter.grad = torch.ones_like(parameter)
        chosen.step(optimiser)
        made.append((model, optimiser, chosen))
    saved = capture(*made[0], lambda name, axes: True)
    tensors = {piece.name: piece.numbers for piece in saved.pieces}
    checkpoint.save(tmp_path, 1, shards_of(tensors), "a")
    restore(checkpoint.load(tmp_path, 1), *made[1])
    owners = [[owner for _, _, owner in one[2].owners(*one[:2])] for one in made]
    for old, new in zip(*owners, strict=True):
        assert new.dtype == torch.float32 and torch.equal(old, new)


def test_a_checkpoint_of_another_model_is_refused(tmp_path) -> None:
    model = torch.nn.Linear(2, 3)
    parts = (model, torch.optim.AdamW(model.parameters()), make_precision("fp32", "cpu"))
    checkpoint.save(tmp_path, 1, shards_of({"weights/weight": torch.ones(3, 3)}), "a")
    with pytest.raises(StudyError, match=r"holds weights/weight of shape \(3, 3\), this model has"):
        restore(checkpoint.load(tmp_path, 1), *parts)
    checkpoint.save(tmp_path, 2, shards_of({"weights/weight": torch.ones(3, 2)}), "a")
    with pytest.raises(StudyError, match="holds no 'weights/bias'"):
        restore(checkpoint.load(tmp_path, 2), *parts)
