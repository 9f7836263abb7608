"""That the contestants of `bench.peers` do the same work, on a tiny model."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from bench import peers
from bench.contestants.apart import Apart
from bench.contestants.libraries import gpt2
from bench.contestants.ours import Ours
from bench.contestants.plain import Plain
from bench.contestants.setting import SIZES, Contestant, Setting, Tokens
from bench.peers import run_rounds
from pipeline.machine.processes import keep_freed_memory
from pipeline.models.gpt2.model import Gpt2
from tests.transformers_weights import load_transformers

SETTING = Setting("tiny", 2, "fp32", compiled=False)

NAMES = {
    "tokens": "wte",
    "places": "wpe",
    "layers": "h",
    "before_attention": "ln_1",
    "qkv": "attn.c_attn",
    "out": "attn.c_proj",
    "before_mlp": "ln_2",
    "up": "mlp.c_fc",
    "down": "mlp.c_proj",
    "norm": "ln_f",
    "head": "lm_head",
}
"""Of the plain model's modules, in ours."""


def test_the_plain_model_is_the_same_function() -> None:
    ours, plain = Ours(SETTING), Plain(SETTING)
    state = {
        ".".join(NAMES.get(part, part) for part in name.split(".")): value
        for name, value in plain.model.state_dict().items()
    }
    ours.model.load_state_dict(state)
    inputs, targets = map(torch.from_numpy, Tokens(SETTING).slice(0, 0, 2))
    expected = plain.model(inputs, targets).item()
    assert ours.model(inputs, targets).item() == pytest.approx(expected, rel=1e-6)


def test_the_library_model_has_as_many_parameters_and_no_dropout() -> None:
    model = gpt2(SETTING)
    assert sum(p.numel() for p in model.parameters()) == SETTING.num_parameters
    ours = Ours(SETTING).model
    assert isinstance(ours, Gpt2)
    load_transformers(ours, model.state_dict())
    ids = torch.from_numpy(Tokens(SETTING).slice(0, 0, 2)[0])
    model.train()
    loss = float(model(input_ids=ids, labels=ids).loss)
    assert loss == pytest.approx(float(ours(ids[:, :-1], ids[:, 1:])), rel=1e-5)


@pytest.mark.parametrize("make", [Ours, Plain])
def test_a_contestant_takes_as_many_steps_as_asked(make: type[Ours] | type[Plain]) -> None:
    one = make(SETTING)
    assert math.isfinite(one.train(3))
    optimiser = one.trainable.optimiser if isinstance(one, Ours) else one.optimiser
    assert {float(slots["step"]) for slots in optimiser.state.values()} == {3.0}


@pytest.mark.parametrize("size", SIZES)
def test_sizes_are_named_after_their_parameters(size: str) -> None:
    count = replace(SETTING, size=size).num_parameters
    assert size == "tiny" or size == f"{count / 1e6:.0f}M"


class Counted:
    """A contestant that counts."""

    def __init__(self, name: str) -> None:
        self.name, self.taken = name, 0

    def train(self, steps: int) -> float:
        self.taken += steps
        return 0.0


def test_every_round_trains_each_and_the_first_is_not_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bench.peers.find_spec", lambda _: None)
    counted = [Counted("a"), Counted("b")]
    contestants: list[Contestant] = list(counted)
    seconds = run_rounds(contestants, SETTING, rounds=3, steps=2)
    assert [one.taken for one in counted] == [8, 8]
    assert {name: len(taken) for name, taken in seconds.items()} == {"a": 3, "b": 3}


def test_out_of_time_a_setting_has_the_least_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.peers.find_spec", lambda _: None)
    contestants: list[Contestant] = [Counted("a")]
    seconds = run_rounds(contestants, SETTING, rounds=50, steps=1, ends=0.0)
    assert len(seconds["a"]) == peers.LEAST_ROUNDS


def test_apart_it_takes_the_same_steps_after_what_it_begins_with() -> None:
    apart = Apart(Plain, "plain", SETTING, keep_freed_memory)
    here = Plain(SETTING)
    assert [apart.train(2), apart.train(1)] == [here.train(2), here.train(1)]
    apart.close()
    with pytest.raises(OSError, match="closed"):
        apart.train(1)
