import re
from pathlib import Path
from typing import Any

import pandas as pd

from pipeline.metrics.build import build
from pipeline.metrics.format import significant
from pipeline.metrics.network_bound import least_milliseconds
from pipeline.metrics.select import pick, records
from pipeline.paper.split_facts import split_facts
from pipeline.study.study import Study
from tests.fake_records import EMULATED, make_study, make_table, write_records
from tests.unit.paper.papers import text_of


def split_text(table: pd.DataFrame, folder: Path) -> str:
    """The section on where the time of a step goes."""
    text = text_of(make_study(repeats=2, profile={"steps": 8}), table, folder)
    return text.partition("## Where the time of a step goes")[2].partition("## Step time")[0]


def test_the_largest_share_of_exposed_communication_is_that_of_the_table(
    table: pd.DataFrame, folder: Path
) -> None:
    shares = pick(table, "cell", "phase_share:communication")
    top = shares.sort_values("value").iloc[-1]
    assert (top["cell"], top["nodes"]) == ("sps", 4)
    text = split_text(table, folder)
    # The same place as that of the largest world is not named twice.
    assert "Over all numbers of nodes" not in text
    assert f"Single Parameter Server, {100 * top['value']:.0f} %, and" in text
    assert "medians over 8 steps of one run" in text
    assert "At 1 node" not in text
    assert "were those of the timed runs to the bit" in text


def test_the_split_says_where_profiled_runs_trained_otherwise(
    table: pd.DataFrame, folder: Path
) -> None:
    own = table.copy()
    row = (own["metric"] == "profile_deviation") & (own["cell"] == "dps") & (own["nodes"] == 2)
    own.loc[row, "value"] = 3e-7
    text = split_text(own, folder)
    assert "differed from those of the timed runs by at most 3.0e-7 relative" in text
    assert "to the bit" not in text


def test_a_cell_without_marks_is_named_and_has_no_share(table: pd.DataFrame, folder: Path) -> None:
    own = table.copy()
    ours = (own["cell"] == "sps") & own["metric"].str.startswith("phase_")
    own.loc[ours & ~own["metric"].str.endswith((":rest", ":data")), ["value", "low"]] = 0.0
    text = split_text(own, folder)
    assert "Of Single Parameter Server only the time of the whole step is seen." in text
    assert text.count("Single Parameter Server") == 1


def test_a_study_without_profiled_runs_has_no_such_section(folder: Path) -> None:
    text = text_of(make_study(repeats=2), make_table(repeats=2), folder)
    assert "Where the time of a step goes" not in text
    assert not re.search(r"[Pp]rofiled runs? (finished|were|differed)", text)


def test_profiled_runs_that_all_failed_leave_no_figure(folder: Path, tmp_path: Path) -> None:
    study = make_study(repeats=2, profile={"steps": 8})
    runs = write_records(
        tmp_path, study, lambda spec: ("oom", "no memory") if spec.profile else None
    )
    text = split_text(build(Study.of(study), runs), folder)
    assert "No profiled run finished" in text and "Figure" not in text
    assert "oom in 3 of 3 runs" in text


def test_exposed_communication_is_held_against_the_least_time_on_a_link(folder: Path) -> None:
    changes: dict[str, Any] = {"repeats": 2, "profile": {"steps": 8}, "cluster": EMULATED}
    table = make_table(**changes)
    facts = split_facts(table)["bound"]
    least = least_milliseconds(table)
    spent = pick(table, "cell", "phase_mean_seconds:communication")
    factors = [
        1000 * float(row["value"]) / least[int(row["nodes"]), row["cell"]]
        for row in records(spent[spent["nodes"] == 4])
        if (int(row["nodes"]), row["cell"]) in least
    ]
    assert (facts["low"], facts["high"]) == tuple(
        significant(one, 2) for one in (min(factors), max(factors))
    )
    text = text_of(make_study(**changes), table, folder)
    assert f"took {facts['low']} times as long in" in text
    assert split_facts(make_table(repeats=2, profile={"steps": 8}))["bound"] == {}
