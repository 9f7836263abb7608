import re
from pathlib import Path

import pandas as pd

from pipeline.metrics.build import build
from pipeline.study.study import Study
from tests.fake_records import make_study, make_table, write_records
from tests.unit.paper.papers import text_of


def split_text(table: pd.DataFrame, folder: Path) -> str:
    """The section on where the time of a step goes."""
    text = text_of(make_study(repeats=2, profile={"steps": 8}), table, folder)
    return text.partition("## Where the time of a step goes")[2].partition("## Step time")[0]


def test_the_split_says_where_profiled_runs_trained_otherwise(table, folder) -> None:
    own = table.copy()
    row = (own["metric"] == "profile_deviation") & (own["cell"] == "dps") & (own["nodes"] == 2)
    own.loc[row, "value"] = 3e-7
    text = split_text(own, folder)
    assert "differed from those of the timed runs by at most 3.0e-7 relative" in text
    assert "to the bit" not in text


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
