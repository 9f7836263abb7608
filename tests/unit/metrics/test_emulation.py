"""Accuracy of the emulated times, from runs in real time and passes of a yardstick."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from pipeline.errors import SamestepError
from pipeline.metrics.emulation import load_uncertainty
from pipeline.metrics.headline import bias_sentence
from pipeline.metrics.results import Results, records
from pipeline.records import RunRecord
from pipeline.study.expansion import every_run
from pipeline.study.spec import REAL_TIME, RunSpec
from pipeline.study.study import Study
from tests import fake_records
from tests.fake_bench import make_yardstick
from tests.fake_records import EMULATED, a_cell, make_record, make_study, pick, table_of, with_steps
from tests.fake_records import made as made_table

CELLS = [
    a_cell("single", "single", "Single", nodes=[1]),
    a_cell("dps", "ddp", "DDP", nodes=[2]),
    a_cell("sps", "parameter_server", "SPS", nodes=[2, 4]),
]
WITHOUT = EMULATED | {"links": EMULATED["links"][1:]}
CLUSTER = WITHOUT | {"real_time": True}


def made(
    several_failure: Any = None,
    uncertainty: float = 0.0,
    level: float = 1.0,
    **changes: Any,
) -> pd.DataFrame:
    """A table whose emulated steps of the cell `dps` take a quarter longer than in real time.

    All emulated ones take `level` times as long.
    """
    study = make_study(**{"cells": CELLS, "cluster": CLUSTER, "repeats": 6, **changes})

    def record_of(spec: RunSpec) -> RunRecord:
        fails = spec.kind == REAL_TIME and spec.world.nodes > 1
        record = make_record(spec, several_failure if fails else None)
        scale = 1.0 if spec.kind == REAL_TIME else level
        steps = [replace(step, seconds=scale * seconds(spec)) for step in record.steps]
        return with_steps(record.run, steps)

    return table_of(study, map(record_of, every_run(Study.of(study))), uncertainty)


def seconds(spec: RunSpec) -> float:
    return (0.1 if spec.kind == REAL_TIME or spec.cell != "dps" else 0.125) + 1e-3 * spec.repeat


@pytest.fixture(scope="module")
def plain() -> pd.DataFrame:
    return made()


def test_nodes_with_cores_of_their_own_are_in_real_time_themselves(monkeypatch) -> None:
    table = made(cluster=WITHOUT, cells=CELLS[:2])
    assert Results(table).bias == 0.0 and "no time was dilated" in bias_sentence(Results(table))
    assert Results(made(cluster=WITHOUT)).bias is None

    def with_a_neighbour(spec: RunSpec, failure: Any) -> RunRecord:
        record = fake_records.make_record(spec, failure)
        record.run["execution"]["emulation"]["measured_cores"][0] = 0.85
        return record

    monkeypatch.setattr(f"{__name__}.make_record", with_a_neighbour)
    table = made(cluster=WITHOUT, cells=CELLS[:2])
    assert Results(table).bias is None
    assert "is decided (it is measured by cluster.real_time" in bias_sentence(Results(table))


def test_the_bias_is_the_far_end_of_the_worst_pair(plain: pd.DataFrame) -> None:
    accurate = {one["cell"]: one for one in records(pick(plain, "cell", "accuracy"))}
    single, sps, worst = (accurate[name] for name in ("single", "sps", "dps"))
    assert worst["value"] == pytest.approx(0.1275 / 0.1025)
    assert single["value"] == sps["value"] == pytest.approx(1)
    assert 1.24 < worst["high"] < 1 + (Results(plain).bias or 0) < 1.3
    said = bias_sentence(Results(plain))
    assert "1.24 [" in said and "(DDP on 2 nodes)" in said
    shown = made_table("accuracy", plain)[1]
    assert list(shown["Cell"]) == ["Single", "DDP", "SPS"]
    assert shown["Ratio"][1].startswith("1.24 [")


def test_a_level_that_all_cells_share_is_no_bias_and_an_uncertain_yardstick_adds(plain) -> None:
    """A ratio of two times does not have the level of the yardstick."""
    bias = Results(plain).bias
    assert bias and Results(made(level=1.3)).bias == pytest.approx(bias)
    assert 1 + (Results(made(uncertainty=0.01)).bias or 0) == pytest.approx(1.01 * (1 + bias))


@pytest.mark.parametrize("change", [{}, {"straggler": 0.5}])
def test_a_machine_that_is_slow_now_and_then_is_no_bias_of_the_emulation(change: Any) -> None:
    """Runs in real time count by the forward passes of the rank that waits least."""

    def record_of(spec: RunSpec) -> RunRecord:
        record = make_record(spec)
        steps = [replace(one, seconds=0.1 + 1e-3 * spec.repeat) for one in record.steps]
        if spec.kind != REAL_TIME:
            return with_steps(record.run, steps)
        # Every other run finds the last of its ranks at half the speed, which computes 0.08 s.
        slow = 0.5 if spec.repeat % 2 else 1.0
        last = len(record.run["ranks"]) - 1
        for rank in record.run["ranks"]:
            speed = slow if rank["rank"] == last else 1.0
            rank["machine_speed"] = dict.fromkeys(("median", "least", "most"), speed)
        cpu = {rank: 0.07 for rank in range(last)} | {last: 0.08 / slow}
        steps = [
            replace(one, seconds=one.seconds + 0.08 / slow - 0.08, cpu_seconds=cpu[one.rank])
            for one in steps
        ]
        return with_steps(record.run, steps)

    link = CLUSTER["links"][0] | change
    study = make_study(cells=CELLS, cluster=CLUSTER | {"links": [link]}, repeats=6)
    bias = Results(table_of(study, map(record_of, every_run(Study.of(study))))).bias
    assert bias is not None
    # Nodes that are slowed on purpose are paced by the yardstick: their times stay as they are.
    assert bias > 0.5 if change else bias < 0.06


@pytest.mark.parametrize(
    "changes",
    [
        {"repeats": 5},
        # The single device has its truth, the cells on four nodes have none.
        {"several_failure": ("unsupported", "4 nodes in real time need 4 cores")},
    ],
)
def test_where_it_was_not_measured_nothing_is_decided(changes: Any) -> None:
    table: pd.DataFrame = made(**changes)
    assert Results(table).bias is None
    assert not {"faster", "slower"} & {*pick(table, "comparison", "speed_verdict")["text"]}
    assert "a core for each node" in bias_sentence(Results(table))


def test_no_time_of_these_runs_goes_anywhere_else(plain: pd.DataFrame) -> None:
    without = made(cluster=WITHOUT)
    own = (plain["level"] == "real_time") | plain["metric"].isin(
        ["real_time_step_seconds", "accuracy", "emulation_bias", "speed_verdict", "order_kept"]
    )
    rest = without[~without["metric"].isin(["speed_verdict", "order_kept"])]
    pd.testing.assert_frame_equal(plain[~own].reset_index(drop=True), rest.reset_index(drop=True))


ROUNDS = 40


def write_yardstick(path: Path, *passes: Any) -> Path:
    """A yardstick whose passes took these seconds in its rounds."""
    path.write_text(json.dumps(make_yardstick(*passes)))
    return path


def test_what_one_pass_varies_by_is_uncertain_and_what_all_share_is_not(tmp_path: Path) -> None:
    level = np.random.default_rng(1).uniform(0.5, 2.0, ROUNDS)
    alike = write_yardstick(tmp_path / "alike.json", 0.01 * level, 0.02 * level, 0.04 * level)
    assert load_uncertainty(alike) == pytest.approx(0, abs=1e-12)
    assert load_uncertainty(None) == 0
    drawn = np.random.default_rng(2).normal(0, 0.1, (2, ROUNDS))
    few = load_uncertainty(write_yardstick(tmp_path / "few.json", *(0.01 * np.exp(drawn))))
    more = np.random.default_rng(2).normal(0, 0.1, (2, 25 * ROUNDS))
    many = load_uncertainty(write_yardstick(tmp_path / "many.json", *(0.01 * np.exp(more))))
    assert 0.01 < few < 0.08
    assert many < few / 2
    with pytest.raises(SamestepError, match=r"all need as many rounds; remove the file"):
        load_uncertainty(write_yardstick(tmp_path / "y.json", [0.1, 0.1, 0.1], [0.1, 0.1]))
