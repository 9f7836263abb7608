"""Experts that are cut over ranks, one of which no token reaches."""

from typing import Any

import torch
from torch import Tensor

from pipeline import strategies
from pipeline.parallel.cut import cut_of
from pipeline.parallel.types import Batch
from pipeline.strategies.expert.step import ExpertAxis
from tests.ranks import fake_group, parts_of

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
