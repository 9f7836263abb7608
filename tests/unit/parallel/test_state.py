"""One rank of four holds its parts of weights and checkpoints, and never more."""

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from pipeline import strategies
from pipeline.errors import StudyError
from pipeline.models.build import build_model, deferred_model
from pipeline.parallel.cut import cut_of, view
from pipeline.parallel.state import capture, materialise, restore
from pipeline.parallel.types import Trainable, slot_name, weight_name
from pipeline.precision import make_precision
from pipeline.strategies.base import Strategy
from pipeline.training import checkpoint
from tests.ranks import MODEL, Live, fake_group, model_of, parts_of
from tests.shards import shards_of

SHARES = {
    ("ddp", ()): 1.0,
    ("sharded", (("stage", 1),)): 0.26,
    ("sharded", (("stage", 3),)): 0.26,
    ("tensor", ()): 0.28,
    ("pipeline_parallel", ()): 0.40,
    ("hybrid", ()): 0.30,
    ("hybrid", (("tensor", 1), ("zero_stage", 1))): 0.30,
    ("hybrid", (("tensor", 1), ("zero_stage", 2))): 0.30,
}
"""The largest part of the state that a rank may keep; the first stage has the embedding."""


@pytest.fixture(params=SHARES, ids=str)
def trainable(request: pytest.FixtureRequest) -> Iterator[Trainable]:
    """A strategy on this rank of four whose optimiser has its slots."""
    name, options = request.param
    strategy = strategies.load(name, dict(options))
    with fake_group(4) as ranks:
        parts = parts_of(strategy, ranks)
        made = strategy.build(parts)
        for parameter in parts.model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        for chosen in made.optimiser.param_groups:
            chosen["lr"] = 0.0
        made.optimiser.step()
        yield made


def test_a_rank_keeps_its_own_share_and_never_more(trainable, request) -> None:
    most = SHARES[request.node.callspec.params["trainable"]]
    whole = 3 * sum(p.nbytes for p in build_model(MODEL, 5).parameters())
    with Live() as live:
        shards = trainable.shards()
    kept = sum(piece.numbers.nbytes for piece in shards.pieces)
    assert live.now >= kept, "the count sees what is there"
    assert live.peak <= kept + 64, "nothing else is made for it, not even for a while"
    assert kept <= most * whole + 4 * len(shards.pieces)


def test_a_rank_reads_what_it_holds_and_no_more(trainable, tmp_path, monkeypatch) -> None:
    """From whole tensors, as one device writes them."""
    tensors = {}
    for key, parameter in build_model(MODEL, 5).named_parameters():
        tensors[weight_name(key)] = torch.rand_like(parameter)
        for slot in ("exp_avg", "exp_avg_sq"):
            tensors[slot_name(key, slot)] = torch.rand_like(parameter)
        tensors[slot_name(key, "step")] = torch.tensor(7.0)
    checkpoint.save(tmp_path, 1, shards_of(tensors), "a")
    real, numbers = checkpoint.Saved.read, list[int]()

    def read(self: checkpoint.Saved, name: str, offsets: Any, shape: Any) -> torch.Tensor:
        numbers.append(math.prod(shape))
        return real(self, name, offsets, shape)

    monkeypatch.setattr(checkpoint.Saved, "read", read)
    trainable.load(checkpoint.Saved(tmp_path, 1))
    shards = trainable.shards()
    for piece in shards.pieces:
        box = view(tensors[piece.name], piece.offsets, piece.numbers.shape)
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
    restore(checkpoint.Saved(tmp_path, 1), *made[1])
    owners = [[owner for _, _, owner in one[2].owners(*one[:2])] for one in made]
    for old, new in zip(*owners, strict=True):
        assert new.dtype == torch.float32 and torch.equal(old, new)


def test_a_checkpoint_of_another_model_is_refused(tmp_path) -> None:
    model = torch.nn.Linear(2, 3)
    parts = (model, torch.optim.AdamW(model.parameters()), make_precision("fp32", "cpu"))
    checkpoint.save(tmp_path, 1, shards_of({"weights/weight": torch.ones(3, 3)}), "a")
    with pytest.raises(StudyError, match=r"holds weights/weight of shape \(3, 3\), this model has"):
        restore(checkpoint.Saved(tmp_path, 1), *parts)
    checkpoint.save(tmp_path, 2, shards_of({"weights/weight": torch.ones(3, 2)}), "a")
    with pytest.raises(StudyError, match="holds no 'weights/bias'"):
        restore(checkpoint.Saved(tmp_path, 2), *parts)


RANKS = 4


def cases() -> list[tuple[str, int]]:
    """Strategies and variants that cut the weights; a new file joins by itself."""
    found = []
    for name in strategies.names():
        for number, options in enumerate(({}, *strategies.load(name, {}).variants)):
            if strategies.load(name, dict(options)).cuts_weights:
                found.append((name, number))
    return found


def built(strategy: Strategy, live: Live | None = None) -> tuple[nn.Module, tuple[int, int]]:
    """The model as the strategy leaves it on this rank, and bytes now and at most when filled."""
    if live is None:
        model = build_model(model_of(strategy), 5)
        strategy.build(parts_of(strategy, RANKS, model))
        return model, (0, 0)
    model, initial = deferred_model(model_of(strategy), 5)
    filled: list[tuple[int, int]] = []

    def fill() -> None:
        materialise(model, initial.values, torch.device("cpu"))
        filled.append((live.now, live.peak))

    strategy.build(parts_of(strategy, RANKS, model, materialise=fill))
    return model, filled[0]


def local(parameter: Any) -> torch.Tensor:
    return parameter.to_local() if hasattr(parameter, "to_local") else parameter.detach()


@pytest.mark.parametrize(("name", "variant"), cases())
def test_a_rank_gets_its_parts_and_never_the_whole(name: str, variant: int) -> None:
    options = dict(({}, *strategies.load(name, {}).variants)[variant])
    strategy = strategies.load(name, options)
    with fake_group(RANKS):
        expected, _ = built(strategy)
        with Live() as live:
            found, (now, peak) = built(strategy, live)
    own, whole = dict(expected.named_parameters()), build_model(model_of(strategy), 5)
    parts = dict(found.named_parameters())
    assert list(parts) == list(own)
    for key, parameter in parts.items():
        assert torch.equal(local(parameter), local(own[key])), key
        assert (cut_of(parameter) is None) == (cut_of(own[key]) is None)
        assert type(parameter) is type(own[key])
    kept = sum(local(p).nbytes for p in parts.values())
    largest = max(p.nbytes for p in whole.parameters())
    assert now >= kept, "the count sees what is there"
    if kept < 0.7 * sum(p.nbytes for p in whole.parameters()):  # a variant may have parts of one
        assert peak < sum(p.nbytes for p in whole.parameters())
    assert peak <= kept + 3 * largest
