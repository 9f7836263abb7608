"""Which figures and tables a study has: all but those that need what it does not have."""

import pytest

from pipeline import figures, tables
from pipeline.metrics.statistics import MIN_REPEATS
from pipeline.study.study import Study
from tests.fake_records import CONDITIONED, EMULATED, make_study

ALONE = CONDITIONED | {"links": CONDITIONED["links"][1:]}


@pytest.mark.parametrize(
    ("changes", "figure", "table"),
    [
        ({}, {"what_if"}, {"what_if"}),
        ({"cluster": EMULATED}, {"what_if"}, {"what_if"}),
        ({"cluster": ALONE}, {"what_if"}, {"what_if"}),
        ({"profile": {"steps": 8}}, {"what_if"}, {"what_if"}),
        ({"cluster": CONDITIONED}, set(), set()),
    ],
    ids=["plain", "two links", "nothing to compare with", "profile", "conditions"],
)
def test_what_a_study_does_not_have(changes, figure, table) -> None:
    study = make_study(**changes)
    assert study["repeats"] < MIN_REPEATS
    figure = figure | {"step_time"}
    figure = figure | {"switches"}  # tests/unit/study/test_switches.py
    figure = figure | ({"time_split"} if study.get("profile") is None else set())
    # none of them cuts a model, see tests/unit/tables/test_tables.py
    table = table | {"layouts"} | ({"accuracy"} if "real_time" not in study["cluster"] else set())
    table = table | ({"sends"} if study.get("profile") is None else set())
    for catalogue, absent in ((figures.catalogue, figure), (tables.catalogue, table)):
        assert set(catalogue.captions) - set(catalogue.shown(Study.of(study))) == absent
