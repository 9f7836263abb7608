"""Unequal work is refused before the first job, unless the study declares that it compares it."""

from typing import Any

import pytest

from pipeline.errors import StudyError
from pipeline.study.equal_work import check_equal_work
from pipeline.study.study import Study
from tests.fake_records import make_study


def with_cell(**changes: Any) -> dict[str, Any]:
    """A study of which the last cell does something else."""
    study = make_study()
    *cells, last = study["cells"]
    return {**study, "cells": [*cells, {**last, **changes}]}


UNEQUAL: list[tuple[str, dict[str, Any]]] = [
    ("global_batch", with_cell(workload={"global_batch": 32})),
    ("schedule", with_cell(optimiser={"learning_rate": 5e-4})),
    ("schedule", with_cell(optimiser={"decay_matrices_only": True})),
    ("updates_per_step", with_cell(options={"optimiser_steps": 2})),
]
CHANGED: list[tuple[str, dict[str, Any]]] = [
    ("ddp", {"compression": "fp16"}),
    ("ddp", {"compression": "powersgd", "powersgd_rank": 2}),
    ("parameter_server", {"staleness": 1}),
    ("parameter_server", {"staleness": 2}),
]
"""Options that change the step."""


@pytest.mark.parametrize(("strategy", "options"), CHANGED)
def test_compressed_and_late_gradients_are_unequal_work(strategy, options) -> None:
    study = with_cell(strategy=strategy, options=options)
    knob, value = next(iter(options.items()))
    with pytest.raises(StudyError, match=rf"{knob}={value} .*\[schedule\]"):
        check_equal_work(Study.of(study))
    check_equal_work(Study.of(study | {"compares": ["schedule"]}))


@pytest.mark.parametrize(("field", "study"), UNEQUAL)
def test_a_field_that_differs_is_named_unless_declared(field: str, study: Any) -> None:
    with pytest.raises(StudyError, match=rf"unequal work: {field} is .* `compares: \[{field}\]`"):
        check_equal_work(Study.of(study))
    check_equal_work(Study.of(study | {"compares": [field]}))


def test_a_strategy_with_an_algorithm_of_its_own_is_unequal_work_as_it_is() -> None:
    for options in ({}, {"inner_steps": 1, "outer_learning_rate": 1.0, "outer_momentum": 0.0}):
        study = with_cell(strategy="local_sgd", options=options)
        with pytest.raises(StudyError, match=r"algorithm=local steps of \d ranks .*\[schedule\]"):
            check_equal_work(Study.of(study))
        check_equal_work(Study.of(study | {"compares": ["schedule"]}))


def test_weak_scaling_keeps_the_batch_per_rank() -> None:
    study = make_study()
    study["workload"] = {**study["workload"], "scaling": "weak", "global_batch": 4}
    check_equal_work(Study.of(study))
    *cells, last = study["cells"]
    study["cells"] = [*cells, {**last, "workload": {"global_batch": 8}}]
    with pytest.raises(StudyError, match=r"batch per rank is 4.0 in cell 'single'"):
        check_equal_work(Study.of(study))
