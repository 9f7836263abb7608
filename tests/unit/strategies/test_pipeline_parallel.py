"""Stages and schedules of a pipeline: layers, micro-batches, bubbles, what is refused."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from itertools import accumulate
from typing import Any, cast

import pytest
import torch
from torch.distributed.pipelining import PipelineStage

from pipeline.cost.schedule import order
from pipeline.errors import StudyError
from pipeline.models.build import build_model
from pipeline.parallel.types import NOT_PROFILED
from pipeline.strategies.pipeline_parallel import schedule as schedules
from pipeline.strategies.pipeline_parallel.schedule import Schedule, Stages
from pipeline.strategies.pipeline_parallel.stages import MarkedStage, StagedModel, Waits
from pipeline.strategies.pipeline_parallel.step import SCHEDULES
from pipeline.study.profiling import BACKWARD, FORWARD, WEIGHTS
from pipeline.study.spec import ModelSpec
from pipeline.training.worker import kind_of
from tests.parity.cases import CUT, EXAMPLES


@pytest.mark.parametrize(("ranks", "chunks", "layers"), [(1, 1, 2), (3, 1, 8), (2, 3, 7)])
def test_every_layer_is_in_one_stage_and_stages_are_in_order(ranks, chunks, layers) -> None:
    stages = Stages(ranks, chunks, layers)
    numbers = [n for stage in range(stages.count) for n in stages.layers_of(stage)]
    assert numbers == list(range(layers))
    sizes = [len(stages.layers_of(stage)) for stage in range(stages.count)]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True), "the last stage, which has the logits, is smallest"
    held = [stage for rank in range(ranks) for stage in stages.of_rank(rank)]
    assert sorted(held) == list(range(stages.count))
    assert all(stages.rank_of(s) == rank for rank in range(ranks) for s in stages.of_rank(rank))


def test_stages_have_the_layers_that_are_stated() -> None:
    stages = Stages(2, 2, 7, (1, 3, 2, 1))
    numbers = [list(stages.layers_of(stage)) for stage in range(4)]
    assert numbers == [[0], [1, 2, 3], [4, 5], [6]]
    assert [stages.held_by(rank) for rank in range(2)] == [(3, True, False), (4, False, True)]


def make(**changed: Any) -> Schedule:
    given: dict[str, Any] = {"asked": 4, "sequences": 8, "accumulation": 1} | changed
    name, stages = given.pop("name", "1f1b"), given.pop("stages", Stages(4, 1, 4))
    return schedules.make("r", name, stages, **given)


def test_the_bubble_is_that_of_the_papers() -> None:
    assert make().bubble == 3 / 4
    assert make(asked=8).idle_share == pytest.approx(3 / 11), "GPipe: (K - 1) / (M + K - 1)"
    halved = make(name="interleaved", stages=Stages(4, 2, 8), asked=8)
    assert halved.bubble == 3 / 16
    assert make(name="zero_bubble").bubble == 1 / 4


def test_micro_batches_default_to_one_for_each_rank() -> None:
    assert make(asked=0).microbatches == 4
    assert make(asked=0, accumulation=2).microbatches == 4
    assert make(name="gpipe", asked=0, sequences=2).microbatches == 2, "no more than sequences"
    assert make(asked=0, sequences=6).microbatches == 6


def test_activations_in_flight_are_bounded_by_the_schedule() -> None:
    assert [make(asked=8, name="gpipe").in_flight(rank) for rank in range(4)] == [8] * 4
    assert [make(asked=8).in_flight(rank) for rank in range(4)] == [4, 3, 2, 1]
    interleaved = make(name="interleaved", stages=Stages(4, 2, 8), asked=8)
    assert [interleaved.in_flight(rank) for rank in range(4)] == [11, 9, 7, 5]


@pytest.mark.parametrize("name", schedules.CHUNKS)
@pytest.mark.parametrize(("ranks", "count"), [(1, 4), (2, 4), (4, 8), (4, 4), (3, 9)])
def test_activations_in_flight_are_those_of_the_order_of_passes(name, ranks, count) -> None:
    chunks = schedules.CHUNKS[name]
    schedule = Schedule(name, Stages(ranks, chunks, ranks * chunks), count)
    frees = WEIGHTS if name == "zero_bubble" else BACKWARD
    for rank in range(ranks):
        changes = [{FORWARD: 1, frees: -1}.get(one[0], 0) for one in schedule.passes(rank)]
        assert sum(changes) == 0
        assert max(accumulate(changes)) == schedule.in_flight(rank)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"stages": Stages(4, 2, 6)}, r"r: 4 pipeline ranks x 2 chunks are 8 stages, but the model has"
     r" 6 layers, .* nearest that fits is 3 ranks x 2 chunks, or model.num_layers 8"),
    ({"stages": Stages(4, 1, 2)}, "nearest that fits is 2 ranks x 1 chunks"),
    *(({"stages": Stages(2, 1, 4, cast("Any", sizes))},
       r"option layers is \[.*\], but the 4 layers are cut into 2 stages; give so many")
      for sizes in ((2, 1), (2, 1, 1), (4, 0), ("a", 3))),
    ({"asked": 16}, "16 pipeline micro-batches do not divide the 8 sequences .* microbatches is 8"),
    ({"asked": 3}, "3 pipeline micro-batches do not divide .* nearest option microbatches is 2"),
    ({"name": "interleaved", "stages": Stages(4, 2, 8), "asked": 3, "sequences": 9,
      "accumulation": 3}, r"interleaved passes 9 micro-batches \(3 x 3\) through 4 pipeline ranks "
     "in 2 rounds, .*; set microbatches to 1"),
    ({"name": "zero_bubble", "stages": Stages(2, 1, 8), "asked": 1, "sequences": 1,
      "accumulation": 5}, "set schedule to 1f1b"),
    ({"asked": 2}, "1f1b passes 2 micro-batches through 4 pipeline ranks.*; set schedule to gpipe"),
]  # fmt: skip


@pytest.mark.parametrize(("changed", "said"), REFUSED)
def test_what_does_not_fit_names_the_factors_and_the_nearest(changed, said) -> None:
    with pytest.raises(StudyError, match=said):
        make(**changed)


def test_names_and_chunks_are_checked() -> None:
    assert [schedules.check_name(name, 0) for name in schedules.CHUNKS] == [1, 1, 2, 1]
    assert schedules.check_name("interleaved", 3) == 3
    with pytest.raises(StudyError, match="gpipe has one stage on each rank, given 2 chunks"):
        schedules.check_name("gpipe", 2)
    with pytest.raises(StudyError, match="interleaved needs 2 chunks or more"):
        schedules.check_name("interleaved", 1)


SPEC = ModelSpec("gpt2", num_layers=5, width=16, num_heads=2, context=8, vocab_size=30)


CONFIGS: dict[str, Any] = {name: EXAMPLES[name].config for name in CUT["pipeline_parallel"]} | {
    "GraniteForCausalLM": {"intermediate_size": 16, "num_key_value_heads": 2,
                           "embedding_multiplier": 3.0, "logits_scaling": 2.0},
    "Gemma2ForCausalLM": {"intermediate_size": 16, "num_key_value_heads": 2, "head_dim": 8},
}  # fmt: skip
"""Those of the suite, and two whose code scales embeddings or logits outside of all modules."""


@pytest.mark.parametrize("name", CONFIGS)
def test_stages_one_after_the_other_are_the_model(name) -> None:
    """Bits of the loss, gradients of every parameter, and all names of the whole model."""
    own = {"architecture": name, "config": CONFIGS[name]}
    spec = replace(SPEC, family="transformers", width=32, num_heads=8, **own)
    ids = torch.arange(2 * SPEC.context).view(2, -1) % SPEC.vocab_size
    ids[:, 0] = 1  # of two heads, the target of the second one
    stages, weights = Stages(2, 2, spec.num_layers, (1, 1, 2, 1)), torch.ones(ids.shape)
    parts = [StagedModel(build_model(spec, 3), stages, rank) for rank in range(2)]
    x = ids
    for number in range(4):
        x = parts[number % 2].stage(number, nullcontext)(x)
    whole = build_model(spec, 3)
    loss, expected = parts[-1].model.loss(x, ids, weights), whole(ids, ids, weights)
    assert torch.equal(loss, expected)
    for one in (loss, expected):
        one.backward()
    found: dict[str, torch.Tensor] = {}
    for part in parts:
        for key, parameter in part.model.named_parameters():
            assert key in part.entries
            gradient = parameter.grad
            assert gradient is not None, key
            found[key] = found[key] + gradient if key in found else gradient
    assert found.keys() == dict(whole.named_parameters()).keys()
    for key, parameter in whole.named_parameters():
        torch.testing.assert_close(found[key], parameter.grad, msg=key)


def test_logits_are_held_against_no_stated_shape(monkeypatch) -> None:
    """torch before 2.13 does so of the last stage too, which sends nothing."""
    held = []
    monkeypatch.setattr(
        PipelineStage, "_validate_fwd_outputs", lambda *given: held.append(given), raising=False
    )
    stage = MarkedStage.__new__(MarkedStage)
    stage.num_stages = 2
    for stage.stage_index in (0, 1):
        stage._validate_fwd_outputs(())
    assert len(held) == 1


def test_what_went_wrong_in_a_stage_is_told_as_it_was(monkeypatch) -> None:
    """torch wraps it; the status of the record is read from the error itself."""

    def wrapped(*_: Any, **__: Any) -> None:
        try:
            raise RuntimeError("can't allocate memory")
        except RuntimeError as error:
            raise RuntimeError("[Stage 0] failed to run forward") from error

    monkeypatch.setattr(PipelineStage, "forward_one_chunk", wrapped)
    stage = MarkedStage.__new__(MarkedStage)
    stage.waits, stage.stage_index = Waits(NOT_PROFILED), 0
    with pytest.raises(RuntimeError) as raised:
        stage.forward_one_chunk(0)
    assert kind_of(raised.value) == "oom"


KINDS = {"F": FORWARD, "B": BACKWARD, "I": BACKWARD, "W": WEIGHTS}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_passes_have_the_order_in_which_torch_runs_them(schedule) -> None:
    """Of torch's own tables, which interleaved schedules run and the others state."""
    for ranks, chunks, count in [(1, 1, 2), (2, 1, 4), (4, 1, 8), (2, 2, 5), (4, 2, 10), (3, 3, 9)]:
        if chunks > 1 and schedule in ("gpipe", "1f1b"):
            continue
        made: Any = object.__new__(SCHEDULES[schedule])
        made._num_stages = made.pp_group_size = ranks
        made._n_microbatches, made.n_local_stages = count, chunks
        made.number_of_rounds = max(1, count // ranks)
        made.microbatches_per_round = count // made.number_of_rounds
        if hasattr(made, "_get_pipeline_order"):
            table = made._get_pipeline_order()
        else:
            table = {r: made._calculate_single_rank_operations(r) for r in range(ranks)}
        for rank in range(ranks):
            passes = [
                (KINDS[one.computation_type.value], one.stage_index, one.microbatch_index)
                for one in table[rank]
                if one is not None and one.computation_type.value in KINDS
            ]
            own = order(schedule, ranks, chunks, count, rank)
            # torch runs 1F1B without its table, which begins at 1 on the last rank.
            known = 1 if schedule == "1f1b" else 3
            assert [one[:known] for one in passes] == [one[:known] for one in own]
