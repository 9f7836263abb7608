"""The step over DTensors, on torch's fake process group: one process, nothing sent."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from pipeline import strategies
from pipeline.parallel.collectives import heard_by
from pipeline.parallel.types import Batch, Phases
from pipeline.study.profiling import COMMUNICATION, FORWARD
from tests.parity.cases import settings_of
from tests.ranks import MODEL, fake_group, parts_of


class Heard(Phases):
    """Counts the collectives of the forward pass."""

    def __init__(self) -> None:
        self.phase, self.count = "", 0

    def begin(self, phase: str, *, after_gradients: str | None = None) -> None:
        self.phase = phase

    @contextmanager
    def during(self, phase: str) -> Iterator[None]:
        self.count += phase == COMMUNICATION and self.phase == FORWARD
        yield


@pytest.mark.parametrize("variant", [0, 1])
def test_without_annotations_no_rank_waits_for_another_before_the_gradients(variant) -> None:
    """Not for the mean loss either, which is put together after the clock."""
    strategy = strategies.load("annotated", dict(settings_of("annotated")[variant]))
    ids, heard = torch.zeros((2, MODEL.context), dtype=torch.int64), Heard()
    with fake_group(4) as ranks:
        trainable = strategy.build(parts_of(strategy, ranks, phases=heard))
        with heard_by(heard):
            trainable.step([Batch(ids, ids)])
    assert (heard.count > 0) == bool(variant)
