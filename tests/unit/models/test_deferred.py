"""Models without memory for their weights: the same initial values, one after the other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from pipeline.errors import StudyError
from pipeline.models import build, deferred
from pipeline.models.build import build_model
from pipeline.models.deferred import deferred_model
from pipeline.study.spec import ModelSpec

SPEC = ModelSpec("gpt2", num_layers=2, width=12, num_heads=2, context=5, vocab_size=31)


@pytest.mark.parametrize("spec", [SPEC, replace(SPEC, pad_vocab_to=16)], ids=["plain", "padded"])
def test_values_are_those_of_a_model_that_was_built_at_once(spec) -> None:
    whole = dict(build_model(spec, 7).named_parameters())
    model, initial = deferred_model(spec, 7)
    found = dict(initial.values(whole.keys()))
    assert all(parameter.is_meta for parameter in model.parameters())
    assert [name for name, _ in model.named_parameters()] == list(whole)
    assert found.keys() == whole.keys()
    assert all(torch.equal(found[name], whole[name]) for name in whole)


def test_a_part_of_the_names_gets_the_same_values() -> None:
    whole, (_, initial) = dict(build_model(SPEC, 7).named_parameters()), deferred_model(SPEC, 7)
    wanted = ["h.1.mlp.c_fc.bias", "h.0.ln_1.weight", "wpe.weight"]
    found = dict(initial.values(wanted))
    assert sorted(found) == sorted(wanted)
    assert all(torch.equal(found[name], whole[name]) for name in wanted)


def test_the_random_state_of_the_process_is_left_alone() -> None:
    before = torch.get_rng_state()
    _, initial = deferred_model(SPEC, 7)
    list(initial.values(["wte.weight"]))
    assert torch.equal(torch.get_rng_state(), before)


class Scaled(nn.Module):
    """Weights that are changed after they were drawn, one of them after another was."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 2)
        with torch.no_grad():
            self.a.weight.mul_(0.5)
            nn.init.normal_(self.b.weight, std=0.1)
            self.a.weight.add_(1.0)


class Assigned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))


class Drawn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(3))


class Rejected(nn.Module):
    """torch draws these again until all are in bounds, so their number depends on the values."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(3, 4)
        nn.init.trunc_normal_(self.a.weight)


class Rows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(4, 3)
        nn.init.zeros_(self.table.weight[0].data)


def family(monkeypatch: Any, kind: type[nn.Module]) -> None:
    class Family:
        build = staticmethod(lambda spec: kind())

    for module in (deferred, build):
        monkeypatch.setattr(module, "family", lambda _: Family)


def test_weights_that_are_changed_after_they_were_drawn(monkeypatch) -> None:
    family(monkeypatch, Scaled)
    whole, (_, initial) = dict(build_model(SPEC, 3).named_parameters()), deferred_model(SPEC, 3)
    found = dict(initial.values(whole.keys()))
    assert all(torch.equal(found[name], whole[name]) for name in whole)


@pytest.mark.parametrize("kind", [Assigned, Drawn, Rejected, Rows])
def test_an_initialisation_that_cannot_be_repeated_is_refused(monkeypatch, kind) -> None:
    family(monkeypatch, kind)
    with pytest.raises(StudyError, match=r"use torch\.nn\.init on each whole parameter"):
        deferred_model(SPEC, 3)
