"""The result in sentences stays short where a study has many cells."""

from __future__ import annotations

from pipeline.metrics.headline import headline
from tests.fake_records import make_study, make_table

SHORT = make_study()["workload"] | {"steps": 6, "untimed_steps": 2}


def cells(*strategies: str) -> list[dict[str, str]]:
    return [
        {"name": f"c{n}", "label": f"Cell {n}", "strategy": strategy, "precision": "fp32"}
        for n, strategy in enumerate(strategies)
    ]


def test_a_winner_of_many_is_compared_with_three() -> None:
    table = make_table(
        cells=cells("ddp", *["parameter_server"] * 5),
        cluster=make_study()["cluster"] | {"nodes": [4]},
        repeats=12,
        workload=SHORT,
    )
    told = headline(table)
    assert "Cell 0 was faster than Cell " in told["result"] and " and 2 more: " in told["result"]
    assert told["result"].count("times as many as Cell") == 3


def test_of_many_without_a_winner_three_are_named() -> None:
    table = make_table(
        cells=cells(*["ddp"] * 60), cluster=make_study()["cluster"] | {"nodes": [1]}, repeats=1,
        workload=SHORT,
    )  # fmt: skip
    lead = headline(table)["lead"]
    assert lead.count(" trained ") == 3 and "tokens/s (and 57 more cells)" in lead, lead
