from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.fake_records import make_study, make_table
from tests.unit.paper.papers import shared_results


@pytest.fixture(scope="module")
def study() -> dict[str, Any]:
    return make_study(repeats=2, claims=["bai2022"], profile={"steps": 8})


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return make_table(repeats=2, profile={"steps": 8})


@pytest.fixture(scope="module")
def folder(
    study: dict[str, Any], table: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    return shared_results(study, table, tmp_path_factory)
