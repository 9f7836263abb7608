"""The step over DTensors, on torch's fake process group: one process, nothing sent."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest
import torch
import torch.distributed as dist

from pipeline import strategies
from pipeline.models.build import build_model
from pipeline.parallel.collectives import heard_by
from pipeline.parallel.types import NOT_PROFILED, Batch, Parts, Phases
from pipeline.precision import make_precision
from pipeline.study.profiling import BACKWARD, COMMUNICATION, FORWARD
from pipeline.training.optimiser import make_optimiser
from tests.parity.cases import Case


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


@pytest.fixture
def group() -> Iterator[None]:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    yield
    dist.destroy_process_group()


def step_of(variant: int, phases: Phases) -> None:
    """One step of a setting of `annotated` on four ranks."""
    case = Case("annotated", variant=variant)
    spec = case.spec(4)
    strategy = strategies.load(case.strategy, case.options)
    ids = torch.zeros((2, spec.model.context), dtype=torch.int64)
    parts = Parts(
        build_model(spec.model, 0),
        partial(make_optimiser, spec.optimiser),
        strategy.layout(spec.world),
        make_precision("fp32", "cpu"),
        1.0,
        phases,
    )
    trainable = strategy.build(parts)
    with heard_by(phases):
        trainable.step([Batch(ids, ids)])


def test_collectives_within_operators_are_marked_where_somebody_listens(group) -> None:
    heard = Heard()
    for phases in (NOT_PROFILED, heard):
        step_of(1, phases)
    assert heard.counts[FORWARD] > 4 and heard.counts[BACKWARD] > 4


def test_without_annotations_no_rank_waits_for_another_before_the_gradients(group) -> None:
    """Not for the mean loss either, which is put together after the clock."""
    heard = Heard()
    step_of(0, heard)
    assert heard.counts[FORWARD] == 0
