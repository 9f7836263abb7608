"""A figure that a table replaces: when, and with which words."""

from __future__ import annotations

import pandas as pd
import pytest

from pipeline.figures.left_out import EVEN, left_out
from tests.fake_records import make_table


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return make_table(repeats=2)


def with_peaks(table: pd.DataFrame, largest: float) -> pd.DataFrame:
    """All ranks at 100 MiB, but those of one cell at `largest` times as much."""
    changed = table.copy()
    peaks = changed["metric"] == "peak_memory_bytes"
    changed.loc[peaks, "value"] = 100.0 * 2**20
    changed.loc[peaks & (changed["cell"] == "sps"), "value"] = largest * 100.0 * 2**20
    return changed


def test_memory_is_left_out_where_all_ranks_need_about_the_same(table: pd.DataFrame) -> None:
    found = left_out(with_peaks(table, EVEN))
    assert list(found) == ["memory"]
    assert "between 100 and 125 MiB" in found["memory"]
    assert left_out(with_peaks(table, 1.01 * EVEN)) == {}


def test_without_a_finished_run_the_figure_says_so_itself(table: pd.DataFrame) -> None:
    assert left_out(table[table["metric"] != "peak_memory_bytes"]) == {}
