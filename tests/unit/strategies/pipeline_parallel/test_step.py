"""Parts of a pipeline's step that need no second rank."""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.pipelining import PipelineStage

from pipeline.cost.schedule import order
from pipeline.parallel.reduction import Reduction
from pipeline.parallel.types import NOT_PROFILED, Batch
from pipeline.strategies.pipeline_parallel.stages import MarkedStage, Waits
from pipeline.strategies.pipeline_parallel.step import SCHEDULES, PipelineStepper
from pipeline.study.profiling import BACKWARD, FORWARD, WEIGHTS
from pipeline.training.worker import kind_of


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
    stage.waits, stage.stage_index, stage.num_stages = Waits(NOT_PROFILED), 0, 2
    with pytest.raises(RuntimeError) as raised:
        stage.forward_one_chunk(0)
    assert kind_of(raised.value) == "oom"


def test_the_last_stage_waits_after_its_loss_not_before(monkeypatch) -> None:
    """On emulated nodes another node would run in between."""
    monkeypatch.setattr(PipelineStage, "forward_one_chunk", lambda *_, **__: None)
    stage, waited = MarkedStage.__new__(MarkedStage), list[int]()
    stage.waits, stage.num_stages = Waits(NOT_PROFILED), 2
    monkeypatch.setattr(stage.waits, "wait", lambda: waited.append(stage.stage_index))
    for stage.stage_index in (0, 1):
        stage.forward_one_chunk(0)
    assert waited == [0]


@pytest.mark.parametrize("stage", [0, 1])
def test_the_first_stage_alone_reduces_before_its_passes_have_ended(stage) -> None:
    """What another one sends to the stage before would wait on the wire behind its buckets."""
    weight, events = nn.Parameter(torch.ones(1)), list[str]()
    bucket: Any = SimpleNamespace(
        parameters=[weight],
        reduce=lambda: events.append("reduce"),
        reduced=lambda: events.append("reduced"),
        gather=lambda: None,
    )

    def passes(*ids: Any, **named: Any) -> None:
        for _ in range(2):
            (2 * weight).backward()
        events.append("passed")

    stepper: Any = object.__new__(PipelineStepper)
    ids = torch.zeros((1, 4), dtype=torch.int64)
    vars(stepper).update(
        precision=SimpleNamespace(
            zero_grad=lambda _: None,
            autocast=nullcontext,
            scaled=lambda loss, *_, **__: nullcontext(loss),
        ),
        optimiser=None, context=None,
        reduction=Reduction([bucket]), reduce=lambda: None,
        _schedules={(1, 4): (SimpleNamespace(step=passes), 2)}, own_stages={stage: None},
        staged=SimpleNamespace(stages=SimpleNamespace(count=3)), device="cpu",
        phases=NOT_PROFILED, waits=Waits(NOT_PROFILED),
    )  # fmt: skip
    stepper.accumulate([Batch(ids, ids)] * 2)
    assert events == (["reduce", "passed"] if stage == 0 else ["passed", "reduce"]) + ["reduced"]


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
