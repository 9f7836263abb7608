"""How many repeats a study needs, by the spread between the runs that were made."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.metrics.select import records
from pipeline.metrics.sizing import repeats_for
from pipeline.metrics.statistics import interval_of_ratio, values_interval
from tests.fake_records import make_table


@pytest.mark.parametrize("spread", [0.05, 0.08])
def test_so_many_repeats_give_such_an_interval(spread: float) -> None:
    count = repeats_for(spread, spread)
    random = np.random.default_rng(7)
    widths = []
    for _ in range(60):
        one, other = (values_interval(list(np.exp(spread * random.standard_normal(count))))
                      for _ in range(2))  # fmt: skip
        found = interval_of_ratio(one, other)
        widths.append(found.high / found.value - 1)
    assert 0.04 < np.median(widths) < 0.06


def test_runs_that_agree_need_the_fewest() -> None:
    assert repeats_for(0.0, 0.0) == 6 and repeats_for(0.005, 0.005) == 6
    assert repeats_for(0.1, 0.1) > repeats_for(0.05, 0.05) > 6


def test_the_table_says_how_many_a_study_would_need() -> None:
    table = make_table()
    rows = {row["metric"]: row for row in records(table[table["level"] == "study"])}
    assert rows["repeats_for_speedups"]["value"] >= 6
    assert rows["exact_speedups"]["value"] <= rows["exact_speedups"]["n"]
    assert "repeats_for_speedups" not in set(make_table(repeats=1)["metric"])
