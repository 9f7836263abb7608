"""Runs of the bench of a run's overhead."""

import json

import pytest

from bench import overhead
from bench.scaffold import STUDY
from pipeline.study.expansion import expand
from pipeline.study.load import load_study
from pipeline.study.spec import RunSpec


@pytest.mark.parametrize("network", ["loopback", "emulated"])
def test_its_runs_need_no_yardstick_which_the_default_study_has(network: str) -> None:
    base = expand(load_study(STUDY))[0]
    assert base.world.yardstick
    spec = overhead.spec_of(base, network, 2)
    assert spec.world.yardstick is None
    assert RunSpec.from_dict(json.loads(spec.to_json())) == spec
