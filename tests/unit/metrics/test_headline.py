"""The result in sentences, words for several things, and rows in order."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from pipeline.metrics.headline import headline
from pipeline.metrics.labels import short_label
from pipeline.metrics.results import Results
from pipeline.text import listed
from tests.fake_records import a_cell, made, make_study, make_table, pick

SHORT = make_study()["workload"] | {"steps": 6, "untimed_steps": 2}


def cells(*strategies: str) -> list[dict[str, Any]]:
    return [a_cell(f"c{n}", one, f"Cell {n}") for n, one in enumerate(strategies)]


def test_a_winner_of_many_is_compared_with_three() -> None:
    table = make_table(
        cells=cells("ddp", *["parameter_server"] * 5),
        cluster=make_study()["cluster"] | {"nodes": [4]},
        repeats=12,
        workload=SHORT,
    )
    told = headline(Results(table))
    assert "Cell 0 was faster than Cell " in told["result"] and " and 2 more: " in told["result"]
    assert told["result"].count("times as many as Cell") == 3


def test_many_without_a_winner_are_counted() -> None:
    table = make_table(
        cells=cells(*["ddp"] * 60), cluster=make_study()["cluster"] | {"nodes": [1]}, repeats=1,
        workload=SHORT,
    )  # fmt: skip
    lead = headline(Results(table))["lead"]
    assert lead.endswith("at 1 node in fp32, the data do not decide which of 60 cells is fastest.")


def test_bytes_of_a_step_are_those_of_one_profiled_run_not_of_all() -> None:
    told = []
    for repeats in (1, 3):
        table = make_table(
            cells=cells("ddp", "sharded"), repeats=3, profile={"steps": 4, "repeats": repeats}
        )
        metrics = table["metric"].astype(str).str.replace("predicted_sent_bytes", "sent_bytes")
        counted = pd.concat([table, table.assign(metric=metrics)[metrics != table["metric"]]])
        counted = counted.reset_index(drop=True)
        told.append((headline(Results(counted))["why"].partition(" in a step")[0], [
            made("layouts", counted)[0][name].max()
            for name in ("sent_bytes", "predicted_sent_bytes")
        ]))  # fmt: skip
    assert told[0] == told[1] and "The rank that sends most sent" in told[0][0]


@pytest.mark.parametrize(
    ("items", "text"),
    [
        ([], ""),
        (["a"], "a"),
        (["a", "b"], "a and b"),
        (["a", "b", "c"], "a, b and c"),
        (["a", "b, x", "c"], "a; b, x and c"),
    ],
)
def test_items_are_listed_so_that_each_is_seen(items: list[str], text: str) -> None:
    assert listed(items) == text


def test_rows_are_picked_in_the_order_of_cells_nodes_repeats_and_steps() -> None:
    table = make_table(repeats=2)
    mixed = table.sample(frac=1, random_state=1)
    keys = ["cell_order", "nodes", "repeat", "rank", "step"]
    rows = pick(mixed, "step", "loss", "step_seconds")
    chosen = mixed[(mixed["level"] == "step") & mixed["metric"].isin(["loss", "step_seconds"])]
    in_order = chosen.sort_values(keys, kind="stable").reset_index(drop=True)
    pd.testing.assert_frame_equal(rows, in_order)


@pytest.mark.parametrize(
    ("label", "ran", "is_short"),
    [
        ("DPS + AMP O2", "torch amp O2, bf16", True),
        ("Horovod + Apex", "apex O1, fp16", True),
        ("Horovod + Apex", "torch amp O1, bf16", False),
        ("Mixed DPS", "torch amp O2, bf16", False),
        ("AMP, not Apex", "torch amp O2, bf16", False),
    ],
)
def test_what_ran_is_said_where_the_label_does_not(label: str, ran: str, is_short: bool) -> None:
    whole = f"{label} [{ran}], 1 Gbit/s"
    expected = f"{label}, 1 Gbit/s" if is_short else whole
    assert short_label({"label": whole, "precision_ran": ran}) == expected
