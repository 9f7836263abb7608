"""The contestants of `bench.peers` do the same work, on a tiny model."""

import math

import pytest
import torch
from torch.nn import functional

from bench.contestants import Setting, Tokens
from bench.contestants.plain import Plain
from bench.peers import CONTESTANTS, LEAST_ROUNDS, ExactGelu, Make, Ours, run_rounds

SETTING = Setting("tiny", 2, "fp32", compiled=False)

NAMES = {
    "tokens": "wte", "places": "wpe", "layers": "h", "before_attention": "ln_1",
    "qkv": "attn.c_attn", "out": "attn.c_proj", "before_mlp": "ln_2", "up": "mlp.c_fc",
    "down": "mlp.c_proj", "norm": "ln_f", "head": "lm_head",
}  # fmt: skip
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


@pytest.mark.parametrize("make", [*CONTESTANTS.values(), ExactGelu])
def test_a_contestant_takes_as_many_steps_as_asked(make: Make) -> None:
    one = make(SETTING)
    assert math.isfinite(one.train(3))
    optimiser = one.trainable.optimiser if isinstance(one, Ours) else one.optimiser
    assert {float(slots["step"]) for slots in optimiser.state.values()} == {3.0}


def test_the_exact_gelu_stands_in_each_layer() -> None:
    x = 100 * torch.ones(SETTING.model.width)
    mlps = [part for name, part in ExactGelu(SETTING).model.named_modules() if name.endswith("mlp")]
    assert len(mlps) == SETTING.model.num_layers
    for mlp in mlps:
        hidden = mlp.c_fc(x)
        torch.testing.assert_close(mlp(x), mlp.c_proj(functional.gelu(hidden)), rtol=0, atol=0)
        assert not torch.equal(mlp(x), mlp.c_proj(functional.gelu(hidden, approximate="tanh")))


@pytest.mark.parametrize(("rounds", "ends", "counted"), [(3, math.inf, 3), (50, 0.0, LEAST_ROUNDS)])
def test_every_round_trains_each_and_the_first_is_not_counted(rounds, ends, counted) -> None:
    taken: dict[str, list[int]] = {"a": [], "b": []}
    trains = {name: steps.append for name, steps in taken.items()}
    seconds = run_rounds(trains, rounds, steps=2, ends=ends)
    assert {name: len(each) for name, each in seconds.items()} == {"a": counted, "b": counted}
    assert taken == dict.fromkeys("ab", [2] * (counted + 1))
