"""The bound of a strategy on several nodes: computation or wire, whichever takes longer."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import scaling
from bench.emulated.checks import least_factor
from bench.emulated.runs import STUDY, Runs, Taken
from bench.emulated.undisturbed import Machine
from pipeline.study.load import load_study


class NoRuns(Runs):
    """The default study, of which nothing is run: every variant takes as long as is said."""

    def __init__(self, *seconds: float) -> None:
        self.study, self.machine, self.seconds = load_study(STUDY), Machine(), seconds

    def in_turn(self, repeats, variants):
        return [[Taken(s, s)] * repeats for s, _ in zip(self.seconds, variants, strict=True)]


def test_bytes_on_the_wire_are_those_of_a_ring_in_full_frames() -> None:
    spec = scaling.spec_of(NoRuns(), scaling.SETTINGS[0], 4)
    gradients = 4 * 169_728
    frames = (9000 + 14) / (9000 - 52)
    assert scaling.wire_seconds(spec) == pytest.approx(2 * 3 / 4 * gradients * frames * 8 / 1e9)


def test_one_node_computes_its_share_of_the_batch() -> None:
    spec = scaling.alone(NoRuns(), 8)
    assert (spec.strategy, spec.world.nodes, spec.workload.global_batch) == ("single", 1, 2)


@pytest.mark.parametrize(("computed", "expected"), [(0.02, 1.5), (0.001, 0.03 / 0.00547)])
def test_the_longer_of_computation_and_wire_is_the_bound(computed, expected) -> None:
    runs = NoRuns(computed, 0.03)
    [found] = scaling.scaled(runs, 2, scaling.SETTINGS[:1], 6)
    assert found["over_bound"]["value"] == pytest.approx(expected, rel=1e-3)
    assert found["dilation"] == least_factor(2)


@pytest.mark.parametrize("setting", scaling.SETTINGS, ids=lambda setting: setting.name)
@pytest.mark.parametrize("nodes", [2, 4, 8])
def test_every_setting_can_run(setting, nodes, tmp_path: Path) -> None:
    spec = scaling.spec_of(NoRuns(), setting, nodes)
    spec.check()
    assert scaling.wire_seconds(spec) > 0 and spec.world.yardstick
