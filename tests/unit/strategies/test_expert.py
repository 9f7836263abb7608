"""Experts that are cut over ranks: one that no token reaches, ZeRO's rows, counts of a spec."""

from typing import Any

import pytest
import torch
from torch import Tensor

from pipeline import models, strategies
from pipeline.models.build import build_model
from pipeline.parallel.cut import cut_of, held
from pipeline.parallel.types import Batch
from pipeline.strategies.expert.step import ExpertAxis
from tests.ranks import fake_group, model_of, parts_of

IDS = torch.arange(32).view(2, 16) % 7


def test_a_rank_to_which_no_token_comes_has_gradients_of_zero(monkeypatch) -> None:
    """Rank 0 of two gives all its tokens away and gets none."""
    with fake_group(2):
        strategy = strategies.load("expert", {})
        trainable: Any = strategy.build(parts_of(strategy, 2))

        def none_comes(self: Any, rows: Tensor, given: Any, taken: Any) -> Tensor:
            return torch.zeros((sum(taken), *rows.shape[1:]), dtype=rows.dtype)

        monkeypatch.setattr(ExpertAxis, "exchange", none_comes)
        trainable.step([Batch(IDS, IDS)])
    experts = [p for p in trainable.model.parameters() if cut_of(p) is not None]
    assert len(experts) == 8 and all(p.shape[0] == 2 for p in experts)
    assert not any(p.grad.any() for p in experts)


def test_under_zero_a_rank_updates_a_share_of_each_matrix_of_its_experts() -> None:
    """Rank 0 of data 2 x expert 2: half of the rows of its experts, a fourth of all else."""
    chosen = strategies.load("expert", {"zero_stage": 1})
    with fake_group(4):
        trainable: Any = chosen.build(parts_of(chosen, 4))
    for whole, rows in trainable.sharded.rows.items():
        if cut_of(whole) is None:
            assert rows.shape == (-(-len(whole) // 4), *whole.shape[1:])
        else:
            assert rows.shape == (whole.shape[1] // 2, len(whole), whole.shape[2])
            assert torch.equal(rows, whole.movedim(1, 0)[: len(rows)])


def test_beside_a_tensor_axis_experts_are_cut_twice() -> None:
    """Rank 0 of expert 2 x tensor 2: the first two experts, half of each of their runs."""
    chosen = strategies.load("hybrid", {"pipeline": 1, "expert": 2})
    plain: Any = build_model(model_of(chosen), 5)
    whole = plain.experts[0]
    gate, up = whole.gate_up_proj[:2].chunk(2, dim=1)
    with fake_group(4):
        trainable: Any = chosen.build(parts_of(chosen, 4))
    own = trainable.model.experts[0]
    assert torch.equal(own.gate_up_proj, torch.cat((gate[:, :24], up[:, :24]), dim=1))
    assert torch.equal(own.down_proj, whole.down_proj[:2, :, :24])
    boxes = held(own.gate_up_proj, own.gate_up_proj)
    assert boxes.shape == whole.gate_up_proj.shape
    assert sorted(boxes.axes) == ["expert", "tensor"]
    assert [(box.offsets, box.at) for box in boxes.boxes] == [
        ((0, 0, 0), (0, 0, 0)),
        ((0, 48, 0), (0, 24, 0)),
    ]


@pytest.mark.parametrize("name", ["gpt2", "LlamaForCausalLM", "MixtralForCausalLM"])
def test_experts_of_a_spec_are_those_of_the_model_that_is_built(name: str) -> None:
    spec, found = models.examples()[name], models.experts(models.examples()[name])
    built: Any = build_model(spec, 5)
    parts = [p for part in getattr(built, "experts", ()) for p in part.parameters()]
    if found is None:
        assert not parts
        return
    assert {p.shape[0] for p in parts} == {found.count}
    assert (sum(p.numel() for p in parts), found.chosen) == (found.parameters, 2)
