"""The checks of the bench of emulated nodes, on runs that nobody made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

import bench.emulation
from bench.emulated import checks
from bench.emulated.cpu_seconds import Tally
from bench.emulated.runs import STUDY, Runs, Taken, Variant, order
from bench.emulated.undisturbed import Machine
from pipeline.schemas import validate
from pipeline.study.load import load_study


class FakeRuns(Runs):
    """Steps of `seconds` that are `slower` by a share for each doubling of the factor."""

    def __init__(self, seconds: float = 0.04, slower: float = 0.0) -> None:
        self.seconds, self.slower, self.tally = seconds, slower, Tally()
        self.study, self.num_parameters, self.machine = load_study(STUDY), 171_000, Machine()
        self.asked: list[Variant] = []

    def in_turn(self, repeats: int, variants: Sequence[Variant]) -> list[list[Taken]]:
        self.asked += variants
        return [[self.taken(variant)] * repeats for variant in variants]

    def taken(self, variant: Variant) -> Taken:
        link = variant.spec.world.link
        assert link is not None
        seconds = self.seconds * (1 + self.slower * (variant.factor - 1)) + 10 / link.rate_mbits
        self.tally.runs += 1
        return Taken(seconds, 0.02 * variant.factor)


def test_a_cell_is_held_against_itself_undilated() -> None:
    runs = FakeRuns()
    found = checks.invariance(runs, "dps", (1, 2, 4), 3)
    assert [v.factor for v in runs.asked] == [1, 2, 4]
    assert {v.spec.world.nodes for v in runs.asked} == {2}
    assert [ratio["value"] for ratio in found["ratios"]] == [1.0, 1.0]
    assert [ratio["cpu_seconds"] for ratio in found["ratios"]] == [2.0, 4.0]
    at_equal = [(0.05 - 0.02) / 0.05, (0.05 - 0.06) / 0.05]
    assert [r["at_equal_cpu_seconds"] for r in found["ratios"]] == pytest.approx(at_equal)
    assert found["reference"] == {"factor": 1, "step_seconds": pytest.approx(0.05)}
    assert checks.invariance(runs, "single", (1, 2), 3)["nodes"] == 1


def test_the_bench_runs_the_default_study_as_it_is() -> None:
    spec = FakeRuns().spec("horovod-amp", 8, 1000.0)
    study = load_study(STUDY)
    assert (spec.model, spec.workload) == (study.model, study.workload)


@pytest.mark.parametrize(("cores", "factors"), [(2, [5, 10]), (4, [3, 10]), (8, [1, 10])])
def test_eight_nodes_are_held_against_the_least_factor_here(cores, factors, monkeypatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(cores)))
    found = checks.factors_here(8, (10,), yardstick=False)
    assert found == factors
    result = checks.eight_nodes(FakeRuns(), "sps", found, 2)
    assert result["reference"]["factor"] == factors[0]
    assert [one["factor"] for one in result["ratios"]] == factors[1:]


def test_the_largest_bias_is_that_of_the_median_farthest_from_one() -> None:
    ratios = [{"ratios": [{"value": 1.01}, {"value": 0.9}]}, {"ratios": [{"value": 1.1}]}]
    assert checks.largest_bias(ratios) == pytest.approx(1 / 0.9 - 1)


def test_half_the_rate_is_held_against_what_a_ring_costs() -> None:
    found = checks.slower(FakeRuns(), 4, 2)
    assert found["value"] == pytest.approx(0.05 / found["predicted_seconds"])
    assert found["predicted_seconds"] == pytest.approx(1.5 * 4 * 171_000 * 8 / 200e6, rel=0.02)


@pytest.mark.parametrize("count", [2, 4])
def test_every_variant_is_as_often_early_as_late(count: int) -> None:
    orders = [order(repeat, count) for repeat in range(2 * count)]
    assert all(sorted(one) == list(range(count)) for one in orders)
    for place in range(count):
        assert sum(one.index(place) for one in orders) == sum(range(count)) * 2


@pytest.mark.parametrize("extent", [bench.emulation.QUICK, bench.emulation.Extent()])
def test_what_is_measured_fits_the_schema(extent, monkeypatch) -> None:
    def length(factor: int, seconds: float, machine: Any) -> dict[str, Any]:
        shares = {"value": 1.0, "p5": 1.0, "p95": 1.0, "n": 9}
        return {"factor": factor, "cpu_seconds": seconds, **shares, **machine.told()}

    told = {"disturbed": 0, "dropped": 0}
    monkeypatch.setattr(bench.emulation, "phase_length", length)
    monkeypatch.setattr(bench.emulation, "bandwidth", lambda n, r, repeats: ([0.9] * 2, told))
    result = bench.emulation.measured(FakeRuns(slower=0.02), extent)
    validate(result, "emulation", "emulation.json")
    assert result["largest_bias"] > 0.05 or extent is bench.emulation.QUICK
    assert [one["cell"] for one in result["invariance"]] == list(extent.cells)
    assert "single" not in [one["cell"] for one in result["eight_nodes"]]
