"""Experts that are cut over ranks: this process is the only one, so all tokens come back to it."""

from collections import defaultdict
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from pipeline import models, strategies
from pipeline.models.build import build_model
from pipeline.parallel.cut import cut_of, held
from pipeline.parallel.types import Batch
from pipeline.strategies.expert.step import ExpertAxis, exchanged
from tests.ranks import fake_group, group_alone, model_of, parts_of

EXPERT = strategies.load("expert", {"ranks": 1})
IDS = torch.arange(32).view(2, 16) % 7


def test_tokens_that_come_back_are_those_of_the_model_itself() -> None:
    """Rows of an expert may come in another order than in transformers' own sort."""
    plain: Any = build_model(model_of(EXPERT), 5)
    loss = plain(IDS, IDS)
    loss.backward()
    with group_alone():
        trainable: Any = EXPERT.build(parts_of(EXPERT, 1))
        own = trainable.accumulate([Batch(IDS, IDS)])
    torch.testing.assert_close(own, loss.detach(), rtol=1e-6, atol=0)
    for (name, one), other in zip(
        trainable.model.named_parameters(), plain.parameters(), strict=True
    ):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-5, atol=1e-7, msg=name)
        assert (cut_of(one) is not None) == ("mlp.experts" in name), name


def test_a_step_sends_each_token_there_and_back_in_both_passes(monkeypatch) -> None:
    """Of four layers and two micro-batches; first a number for each expert."""
    sizes = defaultdict[torch.dtype, list[Any]](list)
    real = dist.all_to_all_single

    def noted(out: Tensor, rows: Tensor, *given: Any, **named: Any) -> Any:
        sizes[rows.dtype].append(tuple(rows.shape))
        return real(out, rows, *given, **named)

    with group_alone():
        trainable: Any = EXPERT.build(parts_of(EXPERT, 1))
        monkeypatch.setattr(dist, "all_to_all_single", noted)
        trainable.step([Batch(IDS, IDS)] * 2)
    assert sizes == {torch.int64: [(4,)] * 8, torch.float32: [(64, 32)] * 32}


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


def test_gradients_travel_back_the_way_that_rows_came(monkeypatch) -> None:
    seen: list[tuple[list[int], list[int]]] = []

    def double(self: Any, rows: Tensor, given: Any, taken: Any) -> Tensor:
        seen.append(([*given], [*taken]))
        return rows.new_full((sum(taken), *rows.shape[1:]), 2.0)

    monkeypatch.setattr(ExpertAxis, "exchange", double)
    axis: Any = object.__new__(ExpertAxis)
    rows = torch.ones(5, 3, requires_grad=True)
    arrived = exchanged(rows, axis, [1, 4], [2, 0])
    arrived.sum().backward()
    assert (arrived.shape, seen) == ((2, 3), [([1, 4], [2, 0]), ([2, 0], [1, 4])])
    assert rows.grad is not None and rows.grad.eq(2).all()


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
