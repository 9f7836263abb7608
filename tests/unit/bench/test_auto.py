"""The bench of `auto`: its cases, and a choice held against what was measured."""

from dataclasses import replace

import pytest

from bench import auto
from bench.auto import CASES, candidates
from pipeline.planner.here import Calibration


class Even(Calibration):
    """A machine on which all work goes at one rate, and a message costs 0.3 ms and its bytes."""

    def seconds(self, operator) -> float:
        return 3e-10 * operator.work

    def collective(self, link, ranks, kind, size) -> float:
        return 3e-4 + size * 8e-6 / float(link.removesuffix("mbit"))


@pytest.mark.parametrize("name", ["tiny-20mbit", "wide-2500mbit-small"])
def test_a_case_has_all_layouts_and_one_choice(name: str) -> None:
    case = next(case for case in CASES if case.name == name)
    layouts = candidates(case, Even({}, {}, 1e10))
    (chosen,) = [one for one in layouts if one.chosen]
    assert {one.mesh for one in layouts} >= {
        "one device", "data 2", "data 4", "data 2 x tensor 2", "data 2 x pipeline 2",
        "tensor 2 x pipeline 2", "pipeline 2",
    }  # fmt: skip
    assert len({one.name for one in layouts}) == len(layouts)
    for one in layouts:
        one.spec.check()
        assert (one.spec.world.dilated_for or one.spec.world.nodes) == case.nodes
    if case.mib:
        fastest = min(layouts, key=lambda one: one.predicted_seconds)
        assert chosen.predicted_seconds >= fastest.predicted_seconds
    else:
        assert chosen.mesh == "one device"


def test_what_no_run_can_make_the_best_is_left_out() -> None:
    """Over twice the choice; but the fastest of a mesh, and what the choice is compared with."""
    layouts = candidates(CASES[0], Even({}, {}, 1e10))
    choice = next(one for one in layouts if one.chosen)
    for factor in (1.99, 2.01):
        others = [replace(choice, mesh=mesh, chosen=False, spec=replace(choice.spec, strategy=name),
                          predicted_seconds=times * factor * choice.predicted_seconds)
                  for mesh, name, times in (("a", "tensor", 1.001), ("a", "tensor", 1.0),
                                            ("b", "tensor", 1.0), ("b", "ddp", 1.001))]  # fmt: skip
        assert list(auto.far([choice, *others])) == [1][: factor > 2]


def layouts(*rows):
    """Layouts of (mesh, strategy, seconds, MiB, chosen)."""
    return [
        {"layout": f"{mesh}, 1 micro-batch", "mesh": mesh, "strategy": strategy, "seconds": seconds,
         "mib": mib, "chosen": chosen, "predicted_seconds": 1.0, "reason": None}
        for mesh, strategy, seconds, mib, chosen in rows
    ]  # fmt: skip


ALL = [
    ("one device", "single", 2.0, 400, False),
    ("data 4", "ddp", 1.0, 400, False),
    ("data 4", "sharded", 1.2, 250, False),
    ("pipeline 4", "pipeline_parallel", 1.5, 200, True),
    ("tensor 4", "tensor", None, None, False),
]


@pytest.mark.parametrize(
    ("mib", "best", "over_best", "over_simple"),
    [(0, "data 4", 0.5, 0.5), (300, "data 4", 0.25, None), (220, "pipeline 4", 0.0, None),
     (100, None, None, None)],
)  # fmt: skip
def test_a_choice_is_held_against_what_fits(mib, best, over_best, over_simple) -> None:
    if best is None:
        with pytest.raises(SystemExit, match="no layout ran and fits"):
            auto.judged(layouts(*ALL), mib)
        return
    verdict = auto.judged(layouts(*ALL), mib)
    assert verdict["best_mesh"] == best
    assert verdict["over_best"] == pytest.approx(over_best)
    assert verdict["over_simple"] == pytest.approx(over_simple)


def test_a_choice_that_does_not_fit_or_run_is_no_near_one() -> None:
    rows = [(*row[:4], row[0] == "one device") for row in ALL]
    verdict = auto.judged(layouts(*rows), 300)
    assert verdict["over_best"] is verdict["over_simple"] is None
    bars = auto.summary([verdict | {"name": "x", "minutes": 1.0}])
    assert (bars["within_20_percent"], bars["of"]) == (0, 1)


@pytest.mark.parametrize(
    ("place", "change"),
    [(0, {}), (0, {"over_best": 0.21}), (0, {"over_best": None}), (0, {"over_simple": 0.01}),
     (0, {"minutes": 40.0}), (3, {"best_mesh": "data 4"})],
)  # fmt: skip
def test_every_bar_is_needed(place, change) -> None:
    meshes = ["data 4", "one device", "tensor 4", "pipeline 2", *["data 4"] * 8]
    cases = [
        {"name": str(n), "best_mesh": mesh, "over_best": 0.1, "over_simple": -0.5, "minutes": 1.0}
        for n, mesh in enumerate(meshes)
    ]
    cases[place] |= change
    assert auto.summary(cases)["met"] == (not change)
