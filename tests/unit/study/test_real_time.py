"""Runs in real time as specs: the timed ones on two nodes, without dilation."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pipeline.errors import StudyError
from pipeline.schemas import validate
from pipeline.study.expansion import expand
from pipeline.study.profiling import profiled
from pipeline.study.real_time import every_run, in_real_time, planned_order
from pipeline.study.spec import REAL_TIME, RunSpec
from pipeline.study.study import Study
from tests.fake_records import EMULATED, make_study

CLUSTER = EMULATED | {"yardstick": True, "real_time": True, "links": EMULATED["links"][:1]}


def study(**changes: object) -> Study:
    return Study.of(make_study(**{"cluster": CLUSTER, "profile": {"steps": 4}, **changes}))


def test_every_timed_run_on_two_nodes_or_a_single_device_has_one() -> None:
    found = in_real_time(study())
    runs = expand(study())
    alone = [run for run in runs if run.strategy == "single" and run.world.nodes == 1]
    timed = [run for run in runs if run.world.nodes == 2 or run in alone]
    assert [run.run_id for run in found] == [run.run_id.replace("/r", "/t") for run in timed]
    for run, emulated in zip(found, timed, strict=True):
        assert (run.kind, run.world.yardstick, run.world.dilated_for) == (REAL_TIME, None, None)
        assert replace(run, world=emulated.world) == emulated
        assert RunSpec.from_dict(run.to_dict()) == run
        validate(run.to_dict(), "spec", "spec.json")


def test_a_study_that_does_not_ask_has_none_and_its_specs_are_as_before() -> None:
    without = study(cluster=EMULATED)
    assert in_real_time(without) == []
    assert every_run(without) == [*expand(without), *profiled(without)]
    assert not any("real_time" in run.to_json() for run in every_run(without))


@pytest.mark.parametrize(("nodes", "count"), [([1], 0), ([1, 4], 7 * 3), ([1, 2, 4], 6 * 3)])
def test_they_are_on_the_fewest_of_several_nodes(nodes: list[int], count: int) -> None:
    cells = [cell | {"nodes": nodes} for cell in make_study()["cells"]]
    if nodes == [1, 2, 4]:
        cells[0]["nodes"] = [1]
    assert len(in_real_time(study(cells=cells))) == count


def test_a_link_under_a_condition_has_none_beside_a_plain_one() -> None:
    plain = EMULATED["links"][0]
    slow = plain | {"name": "uneven", "straggler": 0.5}
    both = in_real_time(study(cluster=CLUSTER | {"links": [plain, slow]}))
    assert {run.world.link.name for run in both if run.world.link} == {plain["name"]}
    assert len(both) == len(in_real_time(study()))
    assert in_real_time(study(cluster=CLUSTER | {"links": [slow]}))


def test_they_follow_the_timed_runs_of_their_repeat() -> None:
    order = planned_order(study())
    assert sorted(run.run_id for run in order) == sorted(run.run_id for run in every_run(study()))
    marks = [(run.profile, run.repeat, run.kind == REAL_TIME) for run in order]
    assert marks == sorted(marks)


def test_only_emulated_nodes_have_them() -> None:
    cluster = make_study()["cluster"] | {"real_time": True}
    with pytest.raises(StudyError, match=r"cluster\.real_time belongs to cluster\.network emulat"):
        study(cluster=cluster)
