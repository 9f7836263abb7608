"""What the bench of a run's overhead counts."""

import json
from pathlib import Path

import pytest

from bench import overhead
from pipeline.study.expansion import expand
from pipeline.study.load import load_study
from pipeline.study.spec import RunSpec


def test_a_part_that_is_done_twice_is_summed_and_a_missing_one_is_nothing(tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    assert overhead.parts_of(marks) == {}
    marks.write_text("nodes made\t0.5\t0.1\nrank 0\t1.0\t0.9\nnodes made\t0.25\t0.2\n")
    parts = overhead.parts_of(marks)
    assert parts["nodes made"] == pytest.approx({"seconds": 0.75, "cpu_seconds": 0.3})
    runs = [
        {"setting": "s", "network": "n", "overhead_seconds": t, "step_seconds": 1.0, "parts": p}
        for t, p in ((1.0, parts), (2.0, {}), (3.0, {}))
    ]
    found = overhead.summary(runs)
    assert found["overhead_seconds"] == 2.0 and found["quartiles"] == [1.5, 2.5]
    assert found["parts"]["nodes made"]["seconds"] == 0.0


@pytest.mark.parametrize("network", ["loopback", "emulated"])
def test_its_runs_need_no_yardstick_which_the_default_study_has(network: str) -> None:
    base = expand(load_study(overhead.STUDY))[0]
    assert base.world.yardstick
    spec = overhead.spec_of(base, network, 2)
    assert spec.world.yardstick is None
    assert RunSpec.from_dict(json.loads(spec.to_json())) == spec
