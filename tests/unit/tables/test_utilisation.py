import pandas as pd
import pytest

from pipeline.metrics.select import records
from pipeline.tables.write import made
from tests.fake_records import make_table


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return make_table(repeats=2)


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
