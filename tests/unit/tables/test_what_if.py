"""The table of conditions: times, ratio and verdict of each cell under each."""

from pathlib import Path

import pandas as pd
import pytest

from pipeline.__main__ import main
from pipeline.tables.write import made
from tests.fake_records import CONDITIONED, make_study, make_table, write_table

CELLS = make_study()["cells"][:4]


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return make_table(repeats=6, cluster=CONDITIONED | {"nodes": [1, 4]}, cells=CELLS)


def test_a_row_is_a_cell_under_a_condition(table: pd.DataFrame) -> None:
    raw, shown = made("what_if", table)
    assert len(raw) == len(shown) == 4 * 3
    assert shown["Condition"].tolist()[:4] == ["straggler"] * 3 + ["jitter"]
    assert shown["Link"][0] == "1 Gbit/s, one node at 0.5 speed"
    assert set(shown["Cell"]) == {cell["label"] for cell in CELLS[1:]}
    first, line = raw.iloc[0], shown.iloc[0]
    ratio = f"{first['ratio']:.2f} [{first['ratio_low']:.2f}, {first['ratio_high']:.2f}]"
    assert (line["Ratio"], line["p"], line["Verdict"]) == (ratio, "0.0065", "slower")
    assert line["Without [ms]"].startswith(f"{1000 * first['plain_seconds']:.0f} [")
    assert line["Under it [ms]"].startswith(f"{1000 * first['seconds']:.0f} [")
    assert set(shown["Verdict"]) == {"slower", "undecided"}


def test_a_study_of_which_nothing_is_to_be_compared_has_an_empty_table(tmp_path: Path) -> None:
    made = make_table(repeats=1, cluster=CONDITIONED, cells=CELLS, fell_back=lambda spec: True)
    metrics = write_table(made, tmp_path)
    assert main(["table", "what_if", "--metrics", str(metrics), "--out", str(tmp_path)]) == 0
    assert len((tmp_path / "what_if.md").read_text().splitlines()) == 4
    assert len((tmp_path / "what_if.csv").read_text().splitlines()) == 1
