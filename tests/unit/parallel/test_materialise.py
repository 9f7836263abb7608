"""A rank that keeps parts of the weights never holds all of them, from the first byte on."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from pipeline import strategies
from pipeline.models.build import build_model
from pipeline.models.deferred import deferred_model
from pipeline.parallel.cut import cut_of
from pipeline.parallel.state import materialise
from pipeline.strategies.base import Strategy
from tests.ranks import MODEL, Live, fake_group, parts_of

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
        model = build_model(MODEL, 5)
        strategy.build(parts_of(strategy, RANKS, model))
        return model, (0, 0)
    model, initial = deferred_model(MODEL, 5)
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
    own, whole = dict(expected.named_parameters()), build_model(MODEL, 5)
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
