"""What the paper says of conditions is what the verdicts say, and nothing where there are none."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from pipeline import tables
from pipeline.metrics.contrasts import against_plain
from pipeline.paper.what_if_facts import what_if_facts
from tests.fake_records import CONDITIONED, EMULATED, make_study, make_table
from tests.unit.paper.papers import text_of

CHANGES: dict[str, Any] = {
    "repeats": 6, "cells": make_study()["cells"][:4], "cluster": CONDITIONED | {"nodes": [1, 4]},
}  # fmt: skip
ROWS = "| a |\n|---|\n| b |\n"


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return make_table(**CHANGES)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables of which it does not matter here what is in them."""
    folder = tmp_path_factory.mktemp("tables")
    (folder / "tables").mkdir()
    for name in tables.names():
        (folder / "tables" / f"{name}.md").write_text(ROWS)
    return folder


def section(table: pd.DataFrame, folder: Path) -> str:
    text = text_of(make_study(**CHANGES), table, folder)
    return text.partition("## What if")[2].partition("## Step time")[0]


def change(table: pd.DataFrame, cell: str, verdict: str, ratio: float) -> pd.DataFrame:
    """The table with another outcome of a cell against itself without its condition."""
    own = table.copy()
    rows = (
        (own["level"] == "comparison")
        & (own["cell"] == cell)
        & own["other"].str.endswith("-plain", na=False)
    )
    own.loc[rows & (own["metric"] == "speed_verdict"), "text"] = verdict
    rate = rows & (own["metric"] == "rate_ratio")
    for column, factor in (("value", 1.0), ("low", 1.01), ("high", 0.99)):
        own.loc[rate, column] = 1 / (ratio * factor)
    return own


def test_the_largest_loss_under_each_condition_is_that_of_the_table(
    table: pd.DataFrame, folder: Path
) -> None:
    text, found = section(table, folder), against_plain(table)
    for condition, rows in found.groupby("condition"):
        top = rows.sort_values("ratio").iloc[-1]
        ratio = rf"{top['ratio']:.2f} \[{top['low']:.2f}, {top['high']:.2f}\]"
        own = text.partition(f"*{condition}*")[2].partition("- *")[0]
        assert f"the largest loss was that of {top['arm_label']}, whose step took {ratio}" in own
    assert "under *asymmetric*, 2." in text
    assert "over the same link, 1 Gbit/s, without it" in text


def test_what_the_data_do_not_decide_is_said_to_be_so(table: pd.DataFrame, folder: Path) -> None:
    own = section(table, folder).partition("*oversubscribed*")[2]
    assert "The data do not decide for Distributed Parameter Server (DDP) (1.0" in own
    none = table
    for cell in ("sps", "dps", "horovod"):
        none = change(none, f"{cell}-oversubscribed", "undecided", 1.02)
    own = section(none, folder).partition("*oversubscribed*")[2]
    assert own.partition("): ")[2].startswith("no cell was slower by the test.")


def test_others_are_told_and_where_intervals_overlap(table: pd.DataFrame, folder: Path) -> None:
    made = change(table, "dps-jitter", "slower", 1.5)
    made = change(made, "horovod-jitter", "slower", 1.505)
    made = change(made, "sps-jitter", "faster", 0.8)
    own = section(made, folder).partition("*jitter*")[2].partition("- *")[0]
    assert "of Horovod, whose step took 1.50 " in own or "took 1.51 " in own
    assert "(its interval overlaps with that of Distributed Parameter Server (DDP))" in own
    assert "Slower as well: Distributed Parameter Server (DDP) (1.50 " in own
    assert "Faster: Single Parameter Server (0.80 " in own


def test_the_abstract_is_of_the_link_without_conditions(table: pd.DataFrame, folder: Path) -> None:
    abstract = text_of(make_study(**CHANGES), table, folder).partition("# Introduction")[0]
    assert "At 4 nodes over 1 Gbit/s in fp32, " in abstract


def test_links_that_have_commas_are_parted_by_semicolons(table: pd.DataFrame, folder: Path) -> None:
    text = text_of(make_study(**CHANGES), table, folder)
    assert "over links of 1 Gbit/s; 1 Gbit/s, one node at 0.5 speed; 1 Gbit/s, jitter" in text


def test_facts_are_json_and_empty_without_a_pair(table: pd.DataFrame, folder: Path) -> None:
    facts = what_if_facts(table)
    assert json.loads(json.dumps(facts, allow_nan=False)) == facts
    plain = make_table(repeats=1, cluster=EMULATED, cells=CHANGES["cells"])
    assert what_if_facts(plain) == {}
    text = text_of(make_study(repeats=1, cluster=EMULATED, cells=CHANGES["cells"]), plain, folder)
    assert "What if" not in text and "themselves without it" not in text
