"""The bench of the ground truth, on runs that nobody made."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from bench import emulation
from bench.emulated.runs import STUDY, Runs, Taken, Variant
from bench.emulated.undisturbed import Machine
from pipeline import strategies
from pipeline.study.load import load_study


class FakeRuns(Runs):
    """Emulated steps take a fifth less than the 40 ms of real ones."""

    def __init__(self) -> None:
        self.study, self.machine = load_study(STUDY), Machine()

    def in_turn(self, repeats: int, variants: Sequence[Variant]) -> list[list[Taken]]:
        times = [0.04 if one.spec.world.real_time else 0.032 for one in variants]
        return [[Taken(seconds, seconds)] * repeats for seconds in times]


def test_every_factor_is_held_against_real_time() -> None:
    found = emulation.accuracy(FakeRuns(), "horovod", emulation.Extent())
    assert found["step_seconds"]["value"] == pytest.approx(0.04)
    said = [(one["factor"], one["yardstick"]) for one in found["ratios"]]
    assert said == [(3, False), (5, False), (10, False), (5, True), (10, True)]
    assert [one["value"] for one in found["ratios"]] == pytest.approx([0.8] * 5)


@pytest.mark.parametrize("name", emulation.Extent.strategies)
def test_every_strategy_can_run(name: str) -> None:
    found = emulation.variants(FakeRuns(), name, (5,))
    assert len(found) == (3 if name in emulation.CELLS else 2)
    for one in found:
        one.spec.check()
        assert one.spec.world.nodes == 2
    strategies.check([one.spec for one in found])
