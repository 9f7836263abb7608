"""Operators of a step, by arithmetic."""

from dataclasses import replace

import pytest

from pipeline.errors import StudyError
from pipeline.models import flops_per_token
from pipeline.planner.operators import of_study, work_of
from pipeline.resolved import resolve
from pipeline.study.expansion import expand
from pipeline.study.load import find_study, load_study

RUNS = [run for name in ("alpa2022", "ptdp2021") for run in expand(load_study(find_study(name)))]


def work(cell):
    return work_of(resolve(next(run for run in RUNS if run.cell == cell)))


def products(stage):
    """FLOPs of both passes, attention as the family counts it."""
    factors = {"product": 6, "attention": 12}
    return sum(n * factors[o.kind] * o.work for o, n in stage.items() if o.kind in factors)


@pytest.mark.parametrize("cell", ["single", "ddp-1", "ddp", "tensor", "pipe-4", "hybrid"])
def test_all_ranks_together_do_what_the_model_has(cell) -> None:
    found = work(cell)
    run = next(run for run in RUNS if run.cell == cell)
    ranks = run.world.size / len(found.stages)
    flops = sum(products(stage) for stage in found.stages) * found.pieces * ranks
    assert flops == pytest.approx(flops_per_token(run.model) * run.global_batch_tokens)


def test_stated_stages_and_cut_sequences_have_their_own_operators() -> None:
    spec = next(run for run in RUNS if run.cell == "pipe-4")
    assert spec.model.num_layers == 8
    stated = replace(spec, options={**spec.options, "layers": [3, 3, 1, 1]})
    attention = [
        sum(n for one, n in stage.items() if one.kind == "attention")
        for stage in work_of(resolve(stated)).stages
    ]
    assert attention == [3, 3, 1, 1]
    tokens = [
        {one.sizes[0] for stage in work(cell).stages for one in stage if one.kind == "add"}
        for cell in ("hybrid", "hybrid-sequence")
    ]
    assert tokens[0] == {2 * each for each in tokens[1]}


def test_a_study_asks_for_each_operator_once() -> None:
    found = of_study(RUNS)
    assert found == sorted(set(found))
    assert {one.kind for one in found} == {
        "product", "attention", "layer_norm", "gelu", "add", "cross_entropy", "embedding", "update"
    }  # fmt: skip


def test_pieces_of_sequences_are_refused() -> None:
    run = next(run for run in RUNS if run.world.size % 2 == 0)
    with pytest.raises(StudyError, match="steps over pieces of sequences are not predicted"):
        work_of(resolve(replace(run, strategy="context", options={})))


def test_a_family_without_operators_is_refused() -> None:
    model = replace(RUNS[0].model, family="transformers", architecture="LlamaForCausalLM")
    with pytest.raises(StudyError, match="operators of LlamaForCausalLM are not known"):
        work_of(resolve(replace(RUNS[0], model=model)))
