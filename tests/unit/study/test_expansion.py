"""Runs besides the timed ones (in real time, profiled), and those that only begin a training."""

from dataclasses import replace

import pytest

from pipeline.errors import StudyError
from pipeline.schemas import validate
from pipeline.study.equal_work import check_equal_work, schedule_text
from pipeline.study.expansion import every_run, expand, in_real_time, planned_order, profiled
from pipeline.study.load import check_study
from pipeline.study.spec import REAL_TIME, RunSpec
from pipeline.study.study import Study
from tests.fake_records import EMULATED, make_study

CLUSTER = EMULATED | {"yardstick": True, "real_time": True, "links": EMULATED["links"][:1]}


def real(**changes: object) -> Study:
    return Study.of(make_study(**{"cluster": CLUSTER, "profile": {"steps": 4}, **changes}))


def profiling(**profile: object) -> Study:
    return Study.of(make_study(profile={"steps": 8, **profile}))


def test_every_timed_run_on_two_nodes_or_a_single_device_has_one_in_real_time() -> None:
    real_runs, runs = in_real_time(real()), expand(real())
    alone = [run for run in runs if run.strategy == "single" and run.world.nodes == 1]
    timed = [run for run in runs if run.world.nodes == 2 or run in alone]
    assert [run.run_id for run in real_runs] == [run.run_id.replace("/r", "/t") for run in timed]
    for run, emulated in zip(real_runs, timed, strict=True):
        assert (run.kind, run.world.yardstick, run.world.dilated_for) == (REAL_TIME, None, None)
        assert replace(run, world=emulated.world) == emulated
        assert RunSpec.from_dict(run.to_dict()) == run
        validate(run.to_dict(), "spec", "spec.json")


@pytest.mark.parametrize(("nodes", "count"), [([1], 0), ([1, 4], 7 * 3), ([1, 2, 4], 6 * 3)])
def test_they_are_on_the_fewest_of_several_nodes(nodes: list[int], count: int) -> None:
    cells = [cell | {"nodes": nodes} for cell in make_study()["cells"]]
    if nodes == [1, 2, 4]:
        cells[0]["nodes"] = [1]
    assert len(in_real_time(real(cells=cells))) == count


def test_a_link_under_a_condition_has_none_beside_a_plain_one() -> None:
    plain = EMULATED["links"][0]
    slow = plain | {"name": "uneven", "straggler": 0.5}
    both = in_real_time(real(cluster=CLUSTER | {"links": [plain, slow]}))
    assert {run.world.link.name for run in both if run.world.link} == {plain["name"]}
    assert len(both) == len(in_real_time(real()))
    assert in_real_time(real(cluster=CLUSTER | {"links": [slow]}))


def test_they_follow_the_timed_runs_of_their_repeat() -> None:
    order = planned_order(real())
    assert sorted(run.run_id for run in order) == sorted(run.run_id for run in every_run(real()))
    marks = [(run.profile, run.repeat, run.kind == REAL_TIME) for run in order]
    assert marks == sorted(marks)


def test_every_cell_and_node_count_has_a_profiled_run_beside_its_timed_ones() -> None:
    profiles, timed = profiled(profiling()), expand(profiling())
    assert {(s.cell, s.world.nodes) for s in profiles} == {(s.cell, s.world.nodes) for s in timed}
    assert profiles[0].run_id == "fake/single/n1/p0"
    assert not {s.run_id for s in profiles} & {s.run_id for s in timed}
    assert timed == expand(Study.of(make_study()))


def test_profiled_runs_of_all_cells_or_some_may_be_repeated_more_often_than_timed_ones() -> None:
    once = profiled(profiling())
    every = profiled(profiling(repeats=4))
    some = profiled(profiling(repeats=4, cells=["dps"]))
    assert {s.cell for s in some if s.repeat} == {"dps"}
    for profiles in (every, some):
        ids = {s.run_id for s in profiles if (s.cell, s.world.nodes) == ("dps", 2)}
        assert ids == {f"fake/dps/n2/p{repeat}" for repeat in range(4)}
        assert tuple(s for s in profiles if s.repeat == 0) == once


def test_a_cell_with_fewer_timed_runs_is_profiled_as_often() -> None:
    cells = [cell | ({"repeats": 2} if cell["name"] == "dps" else {})
             for cell in make_study()["cells"]]  # fmt: skip
    study = check_study(make_study(cells=cells, profile={"steps": 8, "repeats": 4}), "here")
    for runs, counts in ((expand(study), (3, 2)), (profiled(study), (4, 4))):
        per_cell = [
            sum((r.cell, r.world.nodes) == (cell, 2) for r in runs) for cell in ("sps", "dps")
        ]
        assert tuple(per_cell) == counts


def test_a_profiled_run_has_the_learning_rates_of_the_timed_one() -> None:
    short, whole = profiled(profiling())[0], expand(profiling())[0]
    assert (short.workload.steps, short.workload.untimed_steps) == (13, 5)
    assert short.seed == whole.seed
    rates = [[s.optimiser.rate(t, s.workload.steps) for t in range(13)]
             for s in (short, whole)]  # fmt: skip
    assert rates[0] == rates[1]
    assert rates[0][-1] < rates[0][6]


def test_a_profiled_run_keeps_no_checkpoint() -> None:
    study = make_study(profile={"steps": 8})
    study["workload"]["checkpoint_every"] = 4
    assert profiled(Study.of(study))[0].workload.checkpoint_every == 0


BEGIN = {"steps": 8, "whole": ["single/n1", "dps/n2"]}


def test_the_first_repeat_of_the_named_runs_trains_to_the_end_and_all_others_begin() -> None:
    study = Study.of(make_study(beginnings=BEGIN))
    runs = {run.run_id: run for run in expand(study)}
    steps = {name: run.workload.steps for name, run in runs.items()}
    whole = {"fake/single/n1/r0", "fake/dps/n2/r0"}
    assert {name for name, count in steps.items() if count == 30} == whole
    assert {count for name, count in steps.items() if name not in whole} == {8}
    end, begin = runs["fake/single/n1/r0"], runs["fake/single/n1/r1"]
    assert [end.rate(step) for step in range(8)] == [begin.rate(step) for step in range(8)]
    assert end.rate(29) == expand(Study.of(make_study()))[0].rate(29)


def test_a_beginning_is_equal_work_and_another_length_of_the_schedule_is_not() -> None:
    study = Study.of(make_study(beginnings=BEGIN))
    check_equal_work(study)
    assert len({schedule_text(run) for run in expand(study)}) == 1
    [plain] = {schedule_text(run) for run in expand(Study.of(make_study()))}
    assert plain.endswith("length=30 steps=30")
    content = make_study(beginnings=BEGIN)
    content["cells"][1]["optimiser"] = {"schedule_steps": 40}
    with pytest.raises(StudyError, match="schedule"):
        check_equal_work(Study.of(content))
