"""Parts of a pipeline's step that need no second rank."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.distributed.pipelining import PipelineStage

from pipeline.parallel.types import Phases
from pipeline.strategies.pipeline_parallel.stages import MarkedStage, Waits
from pipeline.strategies.pipeline_parallel.step import sum_of_squares
from pipeline.training.worker import kind_of


class Noted(Phases):
    """Keeps what is said, as `phase` or `+phase` and `-phase` for both ends of a context."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def begin(self, phase: str, *, after_gradients: str | None = None) -> None:
        self.said.append(phase)

    @contextmanager
    def during(self, phase: str) -> Iterator[None]:
        self.said.append("+" + phase)
        yield
        self.said.append("-" + phase)


def test_a_rank_waits_wherever_no_micro_batch_passes() -> None:
    """What a pass made is paid for before it is sent, and a wait ends before the next pass."""
    noted = Noted()
    waits = Waits(noted)
    with waits.everywhere():
        with waits.not_while("forward"):
            noted.said.append("pass")
        with waits.not_while("backward"):
            noted.said.append("pass")
    waiting = ["+communication", "-communication"]
    assert noted.said == [*waiting, "forward", "pass", *waiting, "backward", "pass", *waiting]


def test_a_pass_that_fails_leaves_no_wait_open() -> None:
    noted = Noted()
    waits = Waits(noted)
    with pytest.raises(ValueError, match="broken"), waits.everywhere(), waits.not_while("forward"):
        raise ValueError("broken")
    assert noted.said == ["+communication", "-communication", "forward"]


def test_squares_of_no_gradients_are_nought_and_their_sum_is_double_precision() -> None:
    device = torch.device("cpu")
    assert sum_of_squares([], device) == 0
    found = sum_of_squares([torch.full((2,), 3.0), torch.full((1,), 4.0)], device)
    assert found.dtype == torch.float64
    assert float(found) == pytest.approx(34)


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
    stage.waits, stage.stage_index = Waits(Noted()), 0
    with pytest.raises(RuntimeError) as raised:
        stage.forward_one_chunk(0)
    assert kind_of(raised.value) == "oom"
