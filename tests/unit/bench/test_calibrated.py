"""The bench of calibrated steps: its bars."""

import pytest

from bench import calibrated


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


def test_rounds_that_agree_repeat_their_order() -> None:
    assert calibrated.repeatability([[1.0, 1.1, 1.0], [2.0, 2.1, 2.0], [3.0, 3.1, 3.0]]) == 1.0
    # In each comparison the first two stand the other way round in one of both.
    turned = calibrated.repeatability([[1.0, 1.0, 2.5], [2.0, 2.0, 1.0], [3.0, 3.0, 3.0]])
    assert turned == pytest.approx(1 / 3)
