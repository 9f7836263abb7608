"""FLOP utilisation, by hand."""

import dataclasses

import pytest

from pipeline.metrics.runs import load_run, run_frames
from pipeline.records import RunRecord
from pipeline.spec import expand
from tests.fake_records import make_record, make_study

LABEL = {"label": "DDP", "cell_order": 0, "precision_ran": "torch fp32"}


def values(record: RunRecord) -> dict[str, float]:
    rows = run_frames(load_run(record, LABEL))[1]
    return dict(zip(rows["metric"], rows["value"], strict=True))


def test_utilisation_is_flops_per_second_over_the_summed_peaks() -> None:
    spec = next(r for r in expand(make_study()) if r.cell == "dps" and r.world.nodes == 2)
    record = make_record(spec)
    assert "model_flops_utilisation" not in values(record)
    peak = 5e11
    ranks = [rank | {"peak_flops_per_second": peak} for rank in record.run["ranks"]]
    found = values(dataclasses.replace(record, run={**record.run, "ranks": ranks}))
    flops = record.run["model"]["flops_per_token"] * found["tokens_per_second"]
    assert found["model_flops_utilisation"] == pytest.approx(flops / (2 * peak))
    assert found["hardware_flops_utilisation"] == found["model_flops_utilisation"]
