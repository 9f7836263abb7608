"""The result in sentences stays short where a study has many cells."""

from __future__ import annotations

import pandas as pd
import pytest

from pipeline.metrics.headline import headline
from pipeline.metrics.select import few
from pipeline.tables.write import made
from tests.fake_records import make_study, make_table

SHORT = make_study()["workload"] | {"steps": 6, "untimed_steps": 2}


def cells(*strategies: str) -> list[dict[str, str]]:
    return [
        {"name": f"c{n}", "label": f"Cell {n}", "strategy": strategy, "precision": "fp32"}
        for n, strategy in enumerate(strategies)
    ]


@pytest.mark.parametrize(
    ("count", "words"), [(4, "0, 1, 2 and 3"), (5, "0, 1, 2 and 2 more"), (1, "0"), (0, "")]
)
def test_of_many_things_some_are_named_and_the_others_counted(count: int, words: str) -> None:
    assert few(range(count)) == words


def test_a_winner_of_many_is_compared_with_three() -> None:
    table = make_table(
        cells=cells("ddp", *["parameter_server"] * 5),
        cluster=make_study()["cluster"] | {"nodes": [4]},
        repeats=12,
        workload=SHORT,
    )
    told = headline(table)
    assert "Cell 0 was faster than all 5 other fp32 cells: " in told["result"]
    assert told["result"].count("times as many as Cell") == 3


def test_of_many_without_a_winner_three_are_named() -> None:
    table = make_table(
        cells=cells(*["ddp"] * 60), cluster=make_study()["cluster"] | {"nodes": [1]}, repeats=1,
        workload=SHORT,
    )  # fmt: skip
    lead = headline(table)["lead"]
    assert lead.count(" trained ") == 3 and "tokens/s (and 57 more cells)" in lead, lead


def test_bytes_of_a_step_are_those_of_one_profiled_run_not_of_all() -> None:
    told = []
    for repeats in (1, 3):
        table = make_table(
            cells=cells("ddp", "sharded"), repeats=3, profile={"steps": 4, "repeats": repeats}
        )
        metrics = table["metric"].astype(str).str.replace("predicted_sent_bytes", "sent_bytes")
        counted = pd.concat([table, table.assign(metric=metrics)[metrics != table["metric"]]])
        counted = counted.reset_index(drop=True)
        told.append((headline(counted)["why"].partition(" in a step")[0], [
            made("layouts", counted)[0][name].max()
            for name in ("sent_bytes", "predicted_sent_bytes")
        ]))  # fmt: skip
    assert told[0] == told[1] and "The rank that sends most sent" in told[0][0]
