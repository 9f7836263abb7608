"""A cell under a condition compared with the same cell without it: pairs, ratios and words."""

from typing import Any

import pandas as pd
import pytest

from pipeline.metrics.results import Results
from pipeline.metrics.statistics import Interval, interval_of_ratio
from pipeline.metrics.table import check
from tests.fake_records import CONDITIONED, EMULATED, PLAIN, make_study, make_table, pick

CELLS = make_study()["cells"][:4]
CLUSTER = CONDITIONED | {"nodes": [1, 4]}


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return make_table(repeats=6, cluster=CLUSTER, cells=CELLS)


@pytest.fixture(scope="module")
def found(table: pd.DataFrame) -> pd.DataFrame:
    return Results(table).against_plain


def step_seconds(table: pd.DataFrame, cell: str) -> Interval:
    rows = pick(table, "cell", "step_seconds")
    row = rows[(rows["cell"] == cell) & (rows["nodes"] == 4)].iloc[0]
    return Interval(row["value"], row["low"], row["high"], row["n"], row["interval"])


def test_every_cell_under_a_condition_has_a_ratio_of_step_times(table, found) -> None:
    check(table, "here")
    conditions = ["straggler", "jitter", "asymmetric", "oversubscribed"]
    assert found["condition"].tolist() == [c for c in conditions for _ in range(3)]
    assert found["arm"].tolist() == ["sps", "dps", "horovod"] * 4
    adds = ["one node at 0.5 speed", "jitter 0.3", "receives 250 Mbit/s", "uplink 1 Gbit/s"]
    assert found["adds"].tolist() == [text for text in adds for _ in range(3)]
    assert set(found["nodes"]) == {4}
    for row in found.to_dict("records"):
        one, plain = (step_seconds(table, name) for name in (row["cell"], row["plain"]))
        expected = interval_of_ratio(one, plain)
        ratio = (row["ratio"], row["low"], row["high"])
        assert ratio == pytest.approx((expected.value, expected.low, expected.high))
        assert row["interval"] == expected.how
        assert (row["seconds"], row["plain_seconds"]) == (one.value, plain.value)


def test_the_words_are_of_the_test_and_of_the_interval(found: pd.DataFrame) -> None:
    slow = found[found["cell"] == "dps-straggler"].iloc[0]
    assert slow["verdict"] == "slower" and slow["low"] > 1.5
    # Three cells over one link: the exact p-value of 6 against 6, times the three.
    assert found["p_value"].min() == pytest.approx(3 * 2 / 924)
    assert found["p_value"].max() <= 1
    near = found[found["cell"] == "dps-oversubscribed"].iloc[0]
    assert near["verdict"] == "undecided" and near["low"] < 1 < near["high"]


@pytest.mark.parametrize(
    "links",
    [EMULATED["links"], [PLAIN | {"rate_mbits": 500}, *CONDITIONED["links"][1:]]],
    ids=["no condition", "another rate"],
)
def test_without_a_link_to_compare_with_there_is_nothing(links: Any) -> None:
    made = make_table(repeats=1, cluster=CLUSTER | {"links": links}, cells=CELLS)
    empty = Results(made).against_plain
    assert empty.empty and "ratio" in empty.columns


def test_each_rate_has_its_own_reference() -> None:
    slow = {"rate_mbits": 200}
    links = [PLAIN, PLAIN | {"name": "plain-slow"} | slow, PLAIN | {"name": "j", "jitter": 0.3}]
    links.append(links[-1] | {"name": "j-slow"} | slow)
    table = make_table(repeats=1, cluster=CLUSTER | {"links": links}, cells=CELLS)
    made = Results(table).against_plain
    pairs = dict(zip(made["cell"], made["plain"], strict=True))
    assert pairs["dps-j"] == "dps-plain" and pairs["dps-j-slow"] == "dps-plain-slow"
