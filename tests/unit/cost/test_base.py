"""Larger worlds from the measured step of the smallest."""

import pytest

from pipeline.cost.base import families, predict_rows
from pipeline.cost.constants import Constants
from pipeline.cost.points import predict_row, read
from pipeline.cost.score import FOLDER, grown


@pytest.fixture
def rows():
    return read(FOLDER / "internevo_a100.csv")[:8]


def test_a_family_differs_in_its_world_alone(rows) -> None:
    assert list(families(rows)) == [list(range(8))]
    rows[3]["micro"] = "4"
    assert list(families(rows)) == [[0, 1, 2, 4, 5, 6, 7], [3]]


def test_the_base_alone_is_read(rows) -> None:
    before = predict_rows(rows, Constants())
    for row in rows[1:]:
        row["step_s"] = "1e9"
    assert predict_rows(rows, Constants()) == before
    rows[0]["step_s"] = str(2 * float(rows[0]["step_s"]))
    after = predict_rows(rows, Constants())
    assert after[0] == before[0] == {**predict_row(rows[0], Constants()), "base": ""}
    assert all(
        float(a["step_s_pred"]) > float(b["step_s_pred"])
        for a, b in zip(after[1:], before[1:], strict=True)
    )


def test_a_base_without_a_measurement_is_a_reason(rows) -> None:
    rows[0]["step_s"] = ""
    found = predict_rows(rows, Constants())[1]
    assert found["reason"] == "the smallest world has no measured step_s"
    assert found["step_s_pred"] == ""


def test_a_base_makes_predictions_better_than_linear() -> None:
    errors = [
        sum(abs(getattr(one, way) / one.measured - 1) for one in grown()) / len(grown())
        for way in ("predicted", "linear")
    ]
    assert errors[0] < errors[1]
