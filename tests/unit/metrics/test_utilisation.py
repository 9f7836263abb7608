"""FLOP utilisation, by hand."""

import dataclasses

import pytest

from pipeline.metrics.flops import peak_per_rank
from pipeline.metrics.runs import load_run, run_rows
from pipeline.records import RunRecord
from pipeline.study.expansion import expand
from pipeline.study.study import Study
from tests.fake_records import make_record, make_study

LABEL = {"label": "DDP", "cell_order": 0, "precision_ran": "torch fp32"}
PEAK = 5e11


def values(record: RunRecord) -> dict[str, float]:
    rows = run_rows(load_run(record, LABEL))[0]
    return dict(zip(rows.column("metric"), rows.column("value"), strict=True))


def record_of(nodes: int, peak: float | None = PEAK, num_cores: int = 8) -> RunRecord:
    spec = next(
        r for r in expand(Study.of(make_study())) if r.cell == "dps" and r.world.nodes == nodes
    )
    record = make_record(spec)
    ranks = [
        {key: value for key, value in rank.items() if key != "peak_flops_per_second"}
        | ({"peak_flops_per_second": peak} if peak else {})
        for rank in record.run["ranks"]
    ]
    hardware = {**record.run["hardware"], "num_cores": num_cores}
    return dataclasses.replace(record, run={**record.run, "ranks": ranks, "hardware": hardware})


def with_world(record: RunRecord, **world: object) -> RunRecord:
    spec = record.spec.to_dict()
    return dataclasses.replace(
        record, run={**record.run, "spec": {**spec, "world": {**spec["world"], **world}}}
    )


def test_utilisation_is_flops_per_second_over_the_summed_peaks() -> None:
    record = record_of(2)
    found = values(record)
    flops = record.run["model"]["flops_per_token"] * found["tokens_per_second"]
    assert found["model_flops_utilisation"] == pytest.approx(flops / (2 * PEAK))
    assert found["hardware_flops_utilisation"] == found["model_flops_utilisation"]


def test_recomputed_activations_are_hardware_flops_and_no_model_flops() -> None:
    record = record_of(2)
    spec = record.spec.to_dict()
    work = {**spec["workload"], "recompute": True}
    again = dataclasses.replace(record, run={**record.run, "spec": {**spec, "workload": work}})
    kept, found = values(record), values(again)
    assert found["model_flops_utilisation"] == kept["model_flops_utilisation"]
    more = found["hardware_flops_utilisation"] - kept["hardware_flops_utilisation"]
    model = record.spec.model
    flops = model.num_layers * model.width * (16 * model.width + 4 * model.context)
    assert more == pytest.approx(flops * found["tokens_per_second"] / (2 * PEAK))
    work["recompute"] = "attention"
    spec["workload"] = work
    alone = values(dataclasses.replace(record, run={**record.run, "spec": spec}))
    less = alone["hardware_flops_utilisation"] - kept["hardware_flops_utilisation"]
    assert less / more == pytest.approx(model.context / (4 * model.width + model.context))


def test_without_a_measured_peak_there_is_no_utilisation() -> None:
    assert "model_flops_utilisation" not in values(record_of(2, peak=None))


def test_threads_that_share_cores_share_their_peak() -> None:
    assert peak_per_rank(record_of(4, num_cores=4)) == PEAK
    assert peak_per_rank(record_of(4, num_cores=2)) == PEAK / 2
    real = with_world(record_of(4, num_cores=2), network="real")
    assert peak_per_rank(real) == PEAK
