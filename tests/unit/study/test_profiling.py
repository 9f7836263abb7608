"""Profiled runs as specs: apart from the timed ones, and the beginning of one of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pipeline.errors import StudyError
from pipeline.schemas import validate
from pipeline.study.expansion import expand
from pipeline.study.load import check_study
from pipeline.study.profiling import profiled
from pipeline.study.spec import RunSpec
from pipeline.study.study import Study
from tests.fake_records import make_study
from tests.parity.cases import Case


def test_a_study_without_the_key_has_none() -> None:
    assert profiled(Study.of(make_study())) == []


def test_every_cell_and_node_count_has_one_beside_its_timed_runs() -> None:
    study = make_study(profile={"steps": 8})
    found, timed = profiled(Study.of(study)), expand(Study.of(study))
    assert {(s.cell, s.world.nodes) for s in found} == {(s.cell, s.world.nodes) for s in timed}
    assert found[0].run_id == "fake/single/n1/p0"
    assert not {s.run_id for s in found} & {s.run_id for s in timed}
    assert timed == expand(Study.of(make_study()))


def test_profiled_runs_may_be_repeated_more_often_than_timed_ones() -> None:
    found = profiled(Study.of(make_study(profile={"steps": 8, "repeats": 4})))
    ids = {s.run_id for s in found if (s.cell, s.world.nodes) == ("dps", 2)}
    assert ids == {f"fake/dps/n2/p{repeat}" for repeat in range(4)}
    once = profiled(Study.of(make_study(profile={"steps": 8})))
    assert [s.to_json() for s in found if s.repeat == 0] == [s.to_json() for s in once]


def test_only_some_cells_may_be_profiled_often() -> None:
    study = Study.of(make_study(profile={"steps": 8, "repeats": 4, "cells": ["dps"]}))
    assert {s.cell for s in profiled(study) if s.repeat} == {"dps"}
    everywhere = {(s.cell, s.world.nodes) for s in expand(study)}
    assert {(s.cell, s.world.nodes) for s in profiled(study) if not s.repeat} == everywhere


def test_a_cell_with_fewer_timed_runs_is_profiled_as_often() -> None:
    cells = [cell | ({"repeats": 2} if cell["name"] == "dps" else {})
             for cell in make_study()["cells"]]  # fmt: skip
    study = check_study(make_study(cells=cells, profile={"steps": 8, "repeats": 4}), "here")
    for runs, counts in ((expand(study), (3, 2)), (profiled(study), (4, 4))):
        found = [sum((r.cell, r.world.nodes) == (cell, 2) for r in runs) for cell in ("sps", "dps")]
        assert tuple(found) == counts


def test_a_profiled_run_has_the_learning_rates_of_the_timed_one() -> None:
    study = make_study(profile={"steps": 8})
    short, whole = profiled(Study.of(study))[0], expand(Study.of(study))[0]
    assert (short.workload.steps, short.workload.untimed_steps) == (13, 5)
    assert short.seed == whole.seed
    rates = [[s.optimiser.rate(t, s.workload.steps) for t in range(13)]
             for s in (short, whole)]  # fmt: skip
    assert rates[0] == rates[1]
    assert rates[0][-1] < rates[0][6]


def test_a_profiled_spec_survives_the_disk_and_keeps_no_checkpoint() -> None:
    study = make_study(profile={"steps": 8})
    study["workload"]["checkpoint_every"] = 4
    spec = profiled(Study.of(study))[0]
    assert spec.workload.checkpoint_every == 0
    assert RunSpec.from_dict(spec.to_dict()) == spec
    validate(spec.to_dict(), "spec", "here")


def test_a_timed_spec_says_nothing_of_profiles_so_that_its_hash_stays() -> None:
    spec = Case("single").spec(1)
    spec = replace(spec, model=replace(spec.model, num_heads=2, vocab_size=300))
    spec = replace(spec, workload=replace(spec.workload, steps=20))
    spec = replace(spec, optimiser=replace(spec.optimiser, warmup_steps=4))
    assert "profile" not in spec.to_dict()
    # As it was before there were profiled runs.
    assert spec.sha256() == "2ee48576e7f98f009f918e39fa5422ebbccef7310b5280560405d91c34058e02"


def test_more_profiled_steps_than_the_run_has_are_refused_at_the_door() -> None:
    study = make_study(profile={"steps": 26})
    with pytest.raises(StudyError, match=r"profile\.steps 26 .* to at most 25"):
        check_study(study, "here")
    check_study(make_study(profile={"steps": 25}), "here")
