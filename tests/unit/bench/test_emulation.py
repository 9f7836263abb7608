"""The bench of the ground truth, on runs that nobody made."""

import math
from collections.abc import Sequence

import pytest

from bench import emulation
from bench.emulated.runs import Machine, Runs, Taken, Variant, default_study
from pipeline import strategies


class FakeRuns(Runs):
    """Emulated steps take a fifth less than the 40 ms of real ones."""

    def __init__(self) -> None:
        self.study, self.machine = default_study({}, 2), Machine()

    def in_turn(self, repeats: int, variants: Sequence[Variant]) -> list[list[Taken]]:
        times = [0.04 if one.spec.world.real_time else 0.032 for one in variants]
        shares = [0.5 if one.spec.profile else math.nan for one in variants]
        pairs = zip(times, shares, strict=True)
        return [[Taken(seconds, seconds, share)] * repeats for seconds, share in pairs]


def test_every_factor_is_held_against_real_time() -> None:
    row = emulation.accuracy(FakeRuns(), "horovod", emulation.FACTORS, 2, beside=False)
    assert row["step_seconds"]["value"] == pytest.approx(0.04)
    factors = [(one["factor"], one["yardstick"]) for one in row["ratios"]]
    assert factors == [(3, False), (5, False), (10, False), (5, True), (10, True)]
    assert [one["value"] for one in row["ratios"]] == pytest.approx([0.8] * 5)


def test_shares_of_communication_are_those_of_profiled_runs() -> None:
    row = emulation.exposed(FakeRuns(), "dps", (5.0,), 2)
    found = [(one["factor"], one["yardstick"], one["value"]) for one in row["exposed"]]
    assert found == [(1, False, 0.5), (5.0, False, 0.5), (5.0, True, 0.5)]


@pytest.mark.parametrize("name", emulation.CELLS + emulation.OTHERS)
def test_every_strategy_can_run(name: str) -> None:
    made = emulation.variants(FakeRuns(), name, (5,))
    assert len(made) == (3 if name in emulation.CELLS else 2)
    for one in made:
        one.spec.check()
        assert one.spec.world.nodes == 2
    strategies.check([one.spec for one in made])
