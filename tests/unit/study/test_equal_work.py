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


AVERAGING = {"inner_steps": 1, "outer_learning_rate": 1.0, "outer_momentum": 0.0}
UNEQUAL: list[tuple[str, dict[str, Any], str]] = [
    ("global_batch", {"workload": {"global_batch": 32}}, "32"),
    ("schedule", {"optimiser": {"learning_rate": 5e-4}}, "lr=0.0005"),
    ("schedule", {"optimiser": {"decay_matrices_only": True}}, "of matrices"),
    ("updates_per_step", {"options": {"optimiser_steps": 2}}, "2"),
    # Compressed and late gradients, and an algorithm of its own whatever its knobs.
    ("schedule", {"strategy": "ddp", "options": {"compression": "fp16"}}, "compression=fp16"),
    ("schedule",
     {"strategy": "ddp", "options": {"compression": "powersgd", "powersgd_rank": 2}},
     "compression=powersgd powersgd_rank=2"),
    *(("schedule", {"strategy": "parameter_server", "options": {"staleness": n}}, f"staleness={n}")
      for n in (1, 2)),
    *(("schedule", {"strategy": "local_sgd", "options": options}, r"=local steps of \d ranks")
      for options in ({}, AVERAGING)),
]  # fmt: skip
"""A field, what the last cell does, and the words by which it differs."""


@pytest.mark.parametrize(("field", "changes", "words"), UNEQUAL)
def test_a_field_that_differs_is_named_unless_declared(field, changes, words) -> None:
    study = with_cell(**changes)
    said = rf"unequal work: {field} is .*{words} .*`compares: \[{field}\]`"
    with pytest.raises(StudyError, match=said):
        check_equal_work(Study.of(study))
    check_equal_work(Study.of(study | {"compares": [field]}))


def test_weak_scaling_keeps_the_batch_per_rank() -> None:
    study = make_study()
    study["workload"] = {**study["workload"], "scaling": "weak", "global_batch": 4}
    check_equal_work(Study.of(study))
    *cells, last = study["cells"]
    study["cells"] = [*cells, {**last, "workload": {"global_batch": 8}}]
    with pytest.raises(StudyError, match=r"batch per rank is 4.0 in cell 'single'"):
        check_equal_work(Study.of(study))
