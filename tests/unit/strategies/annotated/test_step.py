"""The step over DTensors, on torch's fake process group: one process, nothing sent."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from pipeline import strategies
from pipeline.parallel.collectives import heard_by
from pipeline.parallel.types import NOT_PROFILED, Batch, Phases
from pipeline.study.profiling import BACKWARD, COMMUNICATION, FORWARD
from tests.parity.cases import settings_of
from tests.ranks import MODEL, fake_group, parts_of


class Heard(Phases):
    """Counts the collectives of each phase."""

    def __init__(self) -> None:
        self.phase, self.counts = "", {FORWARD: 0, BACKWARD: 0}

    def begin(self, phase: str, *, after_gradients: str | None = None) -> None:
        self.phase = phase

    @contextmanager
    def during(self, phase: str) -> Iterator[None]:
        if phase == COMMUNICATION and self.phase in self.counts:
            self.counts[self.phase] += 1
        yield


def step_of(variant: int, phases: Phases) -> None:
    """One step of a setting of `annotated` on four ranks."""
    strategy = strategies.load("annotated", dict(settings_of("annotated")[variant]))
    ids = torch.zeros((2, MODEL.context), dtype=torch.int64)
    with fake_group(4) as ranks:
        trainable = strategy.build(parts_of(strategy, ranks, phases=phases))
        with heard_by(phases):
            trainable.step([Batch(ids, ids)])


def test_collectives_within_operators_are_marked_where_somebody_listens() -> None:
    heard = Heard()
    for phases in (NOT_PROFILED, heard):
        step_of(1, phases)
    assert heard.counts[FORWARD] > 4 and heard.counts[BACKWARD] > 4


def test_without_annotations_no_rank_waits_for_another_before_the_gradients() -> None:
    """Not for the mean loss either, which is put together after the clock."""
    heard = Heard()
    step_of(0, heard)
    assert heard.counts[FORWARD] == 0
