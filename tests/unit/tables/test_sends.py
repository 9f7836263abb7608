"""The table of what is sent: formula, prediction and count of the rank that sends most."""

from __future__ import annotations

import pandas as pd
import pytest

from pipeline.metrics import table as tidy
from pipeline.metrics.format import NONE
from pipeline.metrics.profile import profile_rows
from pipeline.records import RunRecord
from pipeline.strategies.base import SYMBOLS
from pipeline.study.profiling import profiled
from pipeline.study.study import Study
from pipeline.tables import TABLES
from pipeline.tables.texts import links_together
from tests.fake_records import made as made_table
from tests.fake_records import make_record, make_study


def metrics(counted: bool) -> pd.DataFrame:
    """Of the profiled runs of DDP alone, where ranks have counted or are older."""
    runs = [s for s in profiled(Study.of(make_study(profile={"steps": 4}))) if s.cell == "dps"]
    records = [made(make_record(spec), counted) for spec in runs]
    names = {"cell": "dps", "label": "DDP", "arm": "dps", "arm_label": "DDP"}
    labels = {("dps", False): {**names, "cell_order": 0, "precision_ran": "torch fp32"}}
    return tidy.assemble(profile_rows(records, labels, {}))


def made(record: RunRecord, counted: bool) -> RunRecord:
    """Rank r sends 8 + 8 r bytes besides an all-reduce of 1,000."""
    size = len(record.run["ranks"])
    ranks = []
    for rank in record.run["ranks"]:
        group = {"axis": "data", "ranks": size, "count": 2}
        extra = 8 + 8 * rank["rank"]
        calls = [
            {"kind": "all_reduce", **group, "payload_bytes": 1000, "wire_bytes": 1000},
            {"kind": "send", **group, "count": 1, "payload_bytes": extra, "wire_bytes": extra},
            {"kind": "receive", **group, "payload_bytes": extra, "wire_bytes": 0},
        ]
        sent = {"steps": 4, "differing_steps": 0, "collectives": calls if size > 1 else []}
        ranks.append(rank | ({"sent": sent} if counted else {}))
    return RunRecord({**record.run, "ranks": ranks}, record.steps)


def test_the_rank_that_sends_most_stands_beside_its_formula() -> None:
    frame, shown = made_table("sends", metrics(counted=True))
    assert list(frame["nodes"]) == [2, 4]  # one node sends nothing
    assert list(frame["formula"]) == ["2(n-1)/n G"] * 2
    assert list(frame["rank"]) == [1, 3]
    assert list(frame["counted_bytes"]) == [1016, 1032]
    parameters = 1_071_872  # of the fake study's model
    assert list(frame["predicted_bytes"]) == [4 * parameters * 2 * (n - 1) / n for n in (2, 4)]
    assert list(frame["calls"]) == ["2 all-reduces, 1 send"] * 2
    assert frame["ratio"][0] == pytest.approx(1016 / (4 * parameters))
    assert list(shown["Counted"]) == ["1,016", "1,032"]


def test_older_records_have_the_formula_alone() -> None:
    _, shown = made_table("sends", metrics(counted=False))
    assert set(shown["Counted"]) == set(shown["Ratio"]) == set(shown["Calls"]) == {NONE}
    assert set(shown["Formula"]) == {"2(n-1)/n G"}


def test_the_caption_explains_every_symbol() -> None:
    assert all(f" {symbol} " in TABLES["sends"].caption.replace(",", " ") for symbol in SYMBOLS)


def test_rows_that_are_the_same_over_links_stand_once() -> None:
    columns = ["Cell", "Link", "Nodes", "Predicted"]
    rows = [["ddp", "slow", "2", "8"], ["ddp", "fast", "2", "8"], ["star", "slow", "2", "8"],
            ["star", "fast", "2", "7"]]  # fmt: skip
    found = links_together(pd.DataFrame(rows, columns=columns)).to_numpy().tolist()
    assert found == [["ddp", "slow; fast", "2", "8"], *rows[2:]]
