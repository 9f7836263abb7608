"""The bench of calibrated steps: which cells count, and its bars."""

import pytest

from bench import calibrated
from pipeline.planner.here import Calibration
from pipeline.resolved import first_runs
from pipeline.study.load import find_study, load_study


def rows(*errors):
    """Predictions of steps of 1, 2, 3, ... s that are off by these shares."""
    return [
        {"cell": f"c{n}", "nodes": "2", "step_s": str(n), "step_s_pred": str(n * (1 + error))}
        for n, error in enumerate(errors, start=1)
    ]


@pytest.mark.parametrize(
    ("errors", "met"),
    [
        ([0.07, -0.07, 0.07, 0.21], False),  # nine tenths of four are all of them
        ([0.07] * 9 + [5.0], True),
        ([0.09] * 9 + [0.0], False),
        ([0.0] * 8 + [0.21, -0.21], False),
        ([0.0, -0.6], False),  # the order is wrong
    ],
)
def test_every_bar_is_needed(errors, met) -> None:
    assert calibrated.judged(rows(*errors))["met"] is met


def test_cells_that_cannot_run_or_be_predicted_are_left_out(monkeypatch) -> None:
    study = load_study(find_study("layouts"))
    even = Calibration({}, {}, 1e10)
    monkeypatch.setattr(Calibration, "seconds", lambda self, operator: 3e-10 * operator.work)
    monkeypatch.setattr(Calibration, "collective", lambda self, *given: 3e-4)
    kept = {run.spec.cell for run in first_runs(study) if calibrated.predicted(run, even)}
    assert {"single", "zero3", "hybrid"} <= kept
    assert "annotated" not in kept
