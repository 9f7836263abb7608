"""Pairs of cells that show what one change adds."""

from typing import Any

import pytest

from pipeline.study.study import Study
from pipeline.study.switches import Switch, switches
from tests.fake_records import a_cell, make_study

BUCKET, FOUR = {"bucket_cap_mb": 1}, {"accumulation_steps": 4}
LARGE = {"global_batch": 64}


def of(*cells: dict[str, Any]) -> list[Switch]:
    return switches(Study.of(make_study(cells=[a_cell("single", "single"), *cells])))


def dps(name: str, **more: Any) -> dict[str, Any]:
    return a_cell(name, "ddp", **more)


def test_each_change_is_shown_alone_and_as_the_last() -> None:
    both = of(
        dps("plain"),
        dps("bucket", options=BUCKET),
        dps("four", workload=FOUR),
        dps("both", options=BUCKET, workload=FOUR),
    )
    bucket, four = "bucket_cap_mb unset to 1", "accumulation_steps 1 to 4"
    assert sorted(both, key=lambda one: (one.what, one.beside)) == [
        Switch(four, "plain", "four", 0, 1),
        Switch(four, "bucket", "both", 1, 1),
        Switch(bucket, "plain", "bucket", 0, 1),
        Switch(bucket, "four", "both", 1, 1),
    ]


@pytest.mark.parametrize(
    "cells",
    [
        [dps("plain"), dps("bucket", options=BUCKET), dps("four", workload=FOUR)],
        [dps("plain"), dps("bucket", options=BUCKET), a_cell("h", "horovod", options={})],
        [
            dps("plain"),
            dps("bucket", options=BUCKET),
            dps("large", workload=LARGE),
            dps("both", options=BUCKET, workload=LARGE),
        ],
    ],
    ids=["each alone", "other strategies", "another batch"],
)
def test_where_no_change_is_made_beside_another_there_is_none(cells: list[dict[str, Any]]) -> None:
    assert of(*cells) == []
