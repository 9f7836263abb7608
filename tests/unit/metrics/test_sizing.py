"""How many repeats a study needs, by the spread between the runs that were made."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.metrics.select import records
from pipeline.metrics.sizing import SHARE, WITHIN, half_width, repeats_for
from pipeline.metrics.statistics import interval_of_ratio, values_interval
from tests.fake_records import make_table


@pytest.mark.parametrize("spread", [0.025, 0.04])
def test_so_many_repeats_make_nine_of_ten_intervals_narrow(spread: float) -> None:
    """Not half of them: intervals of a few repeats differ in width from sample to sample."""
    count = repeats_for([(spread, spread)] * 33)
    random = np.random.default_rng(7)
    narrow = []
    for _ in range(300):
        one, other = (values_interval(list(np.exp(spread * random.standard_normal(count))))
                      for _ in range(2))  # fmt: skip
        narrow.append(half_width(interval_of_ratio(one, other)) <= WITHIN)
    assert SHARE - 0.05 < np.mean(narrow) < SHARE + 0.08


def test_runs_that_agree_need_the_fewest() -> None:
    assert repeats_for([(0.0, 0.0)]) == 6 and repeats_for([(0.005, 0.005)] * 3) == 6
    assert repeats_for([(0.08, 0.08)]) > repeats_for([(0.04, 0.04)]) > 6


def test_one_speedup_of_ten_may_stay_wide() -> None:
    calm, wild = (0.005, 0.005), (0.2, 0.2)
    assert repeats_for([*[calm] * 19, wild]) == 6
    assert repeats_for([*[calm] * 8, wild, wild]) > 100


def test_the_table_says_how_many_a_study_would_need() -> None:
    table = make_table()
    rows = {row["metric"]: row for row in records(table[table["level"] == "study"])}
    assert rows["repeats_for_speedups"]["value"] >= 6
    assert rows["exact_speedups"]["value"] <= rows["exact_speedups"]["n"]
    assert "repeats_for_speedups" not in set(make_table(repeats=1)["metric"])
