"""Parts of a pipeline's step that need no second rank."""

from __future__ import annotations

from typing import Any

import pytest
from torch.distributed.pipelining import PipelineStage

from pipeline.parallel.types import NOT_PROFILED
from pipeline.strategies.pipeline_parallel.stages import MarkedStage, Waits
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
    stage.waits, stage.stage_index = Waits(NOT_PROFILED), 0
    with pytest.raises(RuntimeError) as raised:
        stage.forward_one_chunk(0)
    assert kind_of(raised.value) == "oom"
