"""Which parameters the optimiser decays, and that a spec which does not ask keeps its hash."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pipeline.models.build import build_model
from pipeline.study.equal_work import schedule_text
from pipeline.study.spec import RunSpec
from pipeline.training.optimiser import make_optimiser
from tests.parity.cases import DECAYED, OPTIMISER, Case


@pytest.mark.parametrize("architecture", [None, "OPTForCausalLM"])
def test_biases_norms_and_nothing_else_keep_their_weights(architecture) -> None:
    model = Case("single", architecture=architecture).model
    named = dict(build_model(model, seed=0).named_parameters())
    optimiser = make_optimiser(DECAYED, named.values())
    decay = {p: group["weight_decay"] for group in optimiser.param_groups for p in group["params"]}
    kept = {name for name, parameter in named.items() if decay[parameter] == 0}
    vectors = {n for n in named if n.endswith("bias") or "norm" in n or "ln_" in n}
    assert kept == vectors
    assert {decay[parameter] for parameter in named.values()} == {0, DECAYED.weight_decay}


def test_a_spec_says_it_only_where_it_is_asked_for() -> None:
    every = Case("ddp").spec(2)
    some = replace(every, optimiser=replace(OPTIMISER, decay_matrices_only=True))
    assert "decay_matrices_only" not in every.to_json()
    assert RunSpec.from_dict(some.to_dict()) == some
    assert every.identity() != some.identity()
    assert schedule_text(every) != schedule_text(some), "cells that differ did unequal work"
