"""The tables of memory, of utilisation and of conditions."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from pipeline.__main__ import main
from pipeline.metrics.select import records
from pipeline.planner.memory import (
    CPU_BASE,
    CPU_LOADED_LATER,
    FORKED_LOADED_LATER,
    formula_24,
    predict,
)
from pipeline.resolved import resolve
from pipeline.tables.write import made
from tests.fake_records import CONDITIONED, EMULATED, make_study, make_table, spec_of, write_table


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return make_table(repeats=2)


def test_rank_0_has_a_row_and_the_largest_other_where_it_differs(table) -> None:
    frame = made("memory", table)[0]
    star = frame[(frame["cell"] == "sps") & (frame["nodes"] == 4)]
    peaks = table[(table["metric"] == "peak_memory_bytes") & (table["level"] == "rank")]
    own = peaks[(peaks["cell"] == "sps") & (peaks["nodes"] == 4)]
    others = own[own["rank"] > 0].groupby("rank")["value"].median()
    assert list(star["rank"]) == [0, others.idxmax()]
    # Same predictions, and peaks within a twentieth.
    assert list(frame[(frame["cell"] == "dps") & (frame["nodes"] == 4)]["rank"]) == [0]
    uneven = table.copy()
    chosen = (uneven["cell"] == "dps") & (uneven["rank"] == 2)
    uneven.loc[chosen & (uneven["metric"] == "peak_memory_bytes"), "value"] *= 1.2
    found = made("memory", uneven)[0]
    assert list(found[(found["cell"] == "dps") & (found["nodes"] == 4)]["rank"]) == [0, 2]
    assert list(frame[frame["cell"] == "single"]["rank"]) == [0]


def test_both_predictions_are_those_of_the_spec(table) -> None:
    row = made("memory", table)[0].iloc[0]
    spec = spec_of("single", nodes=1)
    assert row["predicted_memory_bytes"] == predict(resolve(spec)).model_peak
    assert row["formula_memory_bytes"] == formula_24(resolve(spec))
    above = row["peak_memory_bytes"] - CPU_BASE - CPU_LOADED_LATER
    assert row["predicted_ratio"] == pytest.approx(row["predicted_memory_bytes"] / above)
    assert row["formula_ratio"] == pytest.approx(row["formula_memory_bytes"] / above)


def test_the_base_of_a_forked_rank_is_smaller() -> None:
    base = made("memory", make_table(repeats=1, cluster=EMULATED))[0]["base_memory_bytes"]
    assert list(base.dropna().unique()) == [CPU_BASE + FORKED_LOADED_LATER]


def cell(frame: pd.DataFrame, name: str, nodes: int) -> dict[str, float]:
    return records(frame[(frame["cell"] == name) & (frame["nodes"] == nodes)])[0]


def test_a_processor_has_no_datasheet_and_a_failed_cell_nothing(table: pd.DataFrame) -> None:
    shown = made("utilisation", table)[1]
    assert set(shown["Datasheet [GFLOP/s]"]) == {"\N{EN DASH}"}
    assert set(shown.iloc[-1][3:]) == {"\N{EN DASH}"}
    assert "\N{EN DASH}" not in set(shown.iloc[0][3:8])


def test_a_known_device_has_its_datasheet_beside_the_measured_peak(table: pd.DataFrame) -> None:
    chosen = table.assign(device="cuda")
    chosen.loc[chosen["metric"] == "gpus", "text"] = "Tesla V100-SXM2-16GB, Tesla V100-SXM2-16GB"
    frame = made("utilisation", chosen)[0]
    row = cell(frame, "dps", 2)
    assert frame["datasheet_device"].iloc[0] == "Tesla V100 SXM2"
    assert row["datasheet_flops_per_second"] == pytest.approx(15.7e12)
    assert row["share_of_datasheet"] == pytest.approx(row["model_flops_per_second"] / 31.4e12)
    mixed = frame[frame["label"].str.contains("bfloat16|bf16")]
    assert mixed["datasheet_flops_per_second"].isna().all() and not mixed.empty
    assert made("utilisation", chosen)[1].iloc[0]["Datasheet [GFLOP/s]"] == "15,700"
    chosen.loc[chosen["metric"] == "gpus", "text"] = "Tesla V100-SXM2-16GB, NVIDIA H200"
    assert made("utilisation", chosen)[0]["datasheet_device"].isna().all(), "a mixture"


CELLS = make_study()["cells"][:4]


@pytest.fixture(scope="module")
def conditioned() -> pd.DataFrame:
    return make_table(repeats=6, cluster=CONDITIONED | {"nodes": [1, 4]}, cells=CELLS)


def test_a_row_is_a_cell_under_a_condition(conditioned: pd.DataFrame) -> None:
    raw, shown = made("what_if", conditioned)
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
