"""The table of predicted against measured memory."""

import pandas as pd
import pytest

from pipeline.planner.memory import (
    CPU_BASE,
    CPU_LOADED_LATER,
    FORKED_LOADED_LATER,
    formula_24,
    predict,
)
from pipeline.study.expansion import expand
from pipeline.study.study import Study
from pipeline.tables.write import made
from tests.fake_records import EMULATED, make_study, make_table


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
    spec = next(s for s in expand(Study.of(make_study())) if s.cell == "single")
    assert row["predicted_memory_bytes"] == predict(spec).model_peak
    assert row["formula_memory_bytes"] == formula_24(spec)
    above = row["peak_memory_bytes"] - CPU_BASE - CPU_LOADED_LATER
    assert row["predicted_ratio"] == pytest.approx(row["predicted_memory_bytes"] / above)
    assert row["formula_ratio"] == pytest.approx(row["formula_memory_bytes"] / above)


def test_the_base_of_a_forked_rank_is_smaller() -> None:
    base = (
        made("memory", make_table(repeats=1, cluster=EMULATED))[0]["base_memory_bytes"]
        .dropna()
        .unique()
    )
    assert list(base) == [CPU_BASE + FORKED_LOADED_LATER]
