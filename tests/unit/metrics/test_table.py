"""The check of the tidy table, which looks at each distinct value and pattern once."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from pipeline.errors import RecordError
from pipeline.metrics import table as tidy
from pipeline.schemas import validator
from tests.fake_records import make_table


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return make_table(repeats=2)


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("unit", "furlongs", "furlongs"),
        ("run_id", "no run", "no run"),
        ("metric", "Loss", "pattern"),
        ("run_id", None, "'run_id' is a required property"),
        ("status", None, "'status' is a required property"),
    ],
)
def test_one_bad_row_among_many_is_found_and_nothing_written(
    table, column, value, said, tmp_path
) -> None:
    bad = table.copy()
    place = bad.index[bad["level"] == "step"][-1]
    bad.loc[place, column] = value
    tidy.check(table, "here")
    with pytest.raises(RecordError, match=said):
        tidy.write(bad, tmp_path / "m.parquet")
    assert list(tmp_path.iterdir()) == []


def test_what_must_be_there_depends_on_the_level_alone() -> None:
    """Else a pattern of columns at a level would not stand for all rows that have it."""
    schema: Any = validator("metrics").schema
    conditions = [rule["if"]["properties"] for rule in schema["allOf"]]
    assert {name for condition in conditions for name in condition} == {"level"}


def test_what_is_not_looked_at_row_by_row_has_a_type_alone() -> None:
    """Else a row that breaks another rule of theirs would pass."""
    schema: Any = validator("metrics").schema
    rules = [rule.get(branch, {}) for rule in schema["allOf"] for branch in ("then", "else")]
    required = {name for rule in [schema, *rules] for name in rule.get("required", [])}
    assert not required & set(tidy._PER_ROW)
    for name in tidy._PER_ROW:
        assert set(schema["properties"].get(name, {})) <= {"type", "description"}, name
