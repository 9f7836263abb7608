"""Bars on the published points: what is missed names the part at fault, and only that."""

from __future__ import annotations

from pipeline.cost import bars
from pipeline.cost.score import by_source


def test_each_bar_that_is_missed_and_no_other_says_which_part_is_wrong() -> None:
    rows = bars.rows()
    assert {row["verdict"] for row in rows} == {"met", "missed"}
    for row in rows:
        assert bool(row["wrong"]) == (row["verdict"] == "missed"), row
    said = " ".join(bars.missed())
    assert all(row["what"] in said for row in rows if row["wrong"])


def test_every_set_has_a_bar() -> None:
    named = {bar.what.partition(" ")[0] for bar in bars.BARS}
    assert set(by_source()) <= named


def test_a_bar_holds_at_its_ends_and_is_shown_as_it_is_read() -> None:
    bar = bars.Bar("a share", lambda which: {"out": 0.8, "own": 0.5}[which], least=0.8, most=0.97)
    assert bar.row() == {
        "what": "a share", "bar": "at least 80.0 %, at most 97.0 %", "found": "80.0 %",
        "own": "50.0 %", "verdict": "met", "wrong": "",
    }  # fmt: skip
    assert bars.Bar(bars.TAU, lambda which: 0.525, least=0.7).row()["verdict"] == "missed"
    assert bars.Bar(bars.TAU, lambda which: 0.525, least=0.7).row()["found"] == "0.53"
