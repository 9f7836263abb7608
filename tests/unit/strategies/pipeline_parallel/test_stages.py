"""A model cut into stages in one process: what each rank keeps, and that nothing is lost."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch

from pipeline.models import num_parameters
from pipeline.models.build import build_model
from pipeline.strategies.pipeline_parallel.schedule import Stages
from pipeline.strategies.pipeline_parallel.stages import StagedModel
from pipeline.study.spec import ModelSpec

SPEC = ModelSpec("gpt2", num_layers=5, width=16, num_heads=2, context=8, vocab_size=30)


def staged(ranks: int, chunks: int = 1) -> list[StagedModel]:
    stages = Stages(ranks, chunks, SPEC.num_layers)
    return [StagedModel(build_model(SPEC, 3), stages, rank) for rank in range(ranks)]


@pytest.mark.parametrize(("ranks", "chunks"), [(1, 1), (3, 1), (2, 2), (1, 3)])
def test_stages_one_after_the_other_are_the_model(ranks, chunks) -> None:
    parts, whole = staged(ranks, chunks), build_model(SPEC, 3)
    ids = torch.arange(2 * SPEC.context).view(2, -1) % SPEC.vocab_size
    x = ids
    for number in range(ranks * chunks):
        x = parts[number % ranks].stage(number, nullcontext)(x)
    loss = parts[-1].model.loss(x, ids)
    assert torch.equal(loss, whole(ids, ids))


def test_every_parameter_has_one_owner_and_the_tied_one_a_copy() -> None:
    parts = staged(3)
    names = [name for name, _ in build_model(SPEC, 3).named_parameters()]
    for part in parts:
        assert list(part.entries) == names
    owners = [[part.rank for part in parts if part.owned(name)] for name in names]
    assert all(len(found) == 1 for found in owners)
    held = {n: [p.rank for p in parts if n in dict(p.model.named_parameters())] for n in names}
    assert held.pop("wte.weight") == [0, 2]
    assert all(len(ranks) == 1 for ranks in held.values())
    assert [part.tied for part in parts] == [["wte.weight"], [], ["wte.weight"]]
    assert all(p.model.lm_head.weight is p.model.wte.weight for p in (parts[0], parts[2]))


def test_a_rank_frees_what_others_hold() -> None:
    sizes = [sum(p.numel() for p in part.model.parameters()) for part in staged(3)]
    shared = SPEC.vocab_size * SPEC.width
    assert sum(sizes) == num_parameters(SPEC) + shared
    assert max(sizes) < num_parameters(SPEC) / 2


def test_one_rank_with_both_ends_has_no_copy() -> None:
    (part,) = staged(1, chunks=2)
    assert part.tied == []
    assert sum(p.numel() for p in part.model.parameters()) == num_parameters(SPEC)
