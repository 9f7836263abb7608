"""Studies of which two runs train to the end and all others are the beginning of that training."""

import pytest

from pipeline.errors import StudyError
from pipeline.study.equal_work import check_equal_work, schedule_text
from pipeline.study.expansion import expand, profiled
from pipeline.study.load import find_study, load_study
from pipeline.study.study import Study
from tests.fake_records import make_study

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


def test_the_laptop_trains_twice_to_the_end_on_text_that_is_new_at_each_step() -> None:
    study = load_study(find_study("bai2022-laptop"))
    ends = [run for run in expand(study) if run.workload.steps == study.workload.steps]
    assert [run.run_id for run in ends] == [
        "bai2022-laptop/single/n1/r0",
        "bai2022-laptop/dps/n2/r0",
    ]
    assert len(profiled(study)) == 36
