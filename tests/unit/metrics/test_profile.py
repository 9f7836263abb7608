"""Rows of profiled runs: what they say, and that nothing else hears of them; rounds of steps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import RecordError
from pipeline.metrics.build import build
from pipeline.metrics.collect import read_all, run_folder
from pipeline.metrics.profile import phase_steps, slowest
from pipeline.metrics.results import Results
from pipeline.metrics.runs import load_run
from pipeline.records import RunRecord, Step
from pipeline.study.expansion import expand
from pipeline.study.profiling import IN_STEP
from pipeline.study.study import Study
from tests.fake_records import (
    a_cell,
    edit_steps,
    fail,
    make_record,
    make_study,
    make_table,
    pick,
    row_of,
    spec_of,
    write_records,
)
from tests.unit.figures.drawn import draw, words

PROFILE: dict[str, Any] = {"profile": {"steps": 8}}
STUDY = make_study(**PROFILE)
PROFILED = make_record(spec_of(**PROFILE))


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return make_table(**PROFILE)


def test_nothing_but_the_rows_about_profiles_comes_from_a_profiled_run(table: pd.DataFrame) -> None:
    plain = make_table()
    about = table["metric"].str.startswith("phase_") | (table["level"] == "profile")
    pd.testing.assert_frame_equal(table[~about].reset_index(drop=True), plain)
    assert not table[table["level"] != "profile"]["run_id"].str.contains("/p").any()


@given(st.lists(st.tuples(*[st.floats(1e-3, 10)] * 5), min_size=8, max_size=8))
def test_phases_of_unequal_ranks_add_up_to_the_step_of_all_other_figures(parts) -> None:
    """Four steps of two ranks, whose phases have any lengths."""
    steps = [
        Step(number // 2, number % 2, sum(own), 1, 1.0, 1.0, 1.0, True,
             {**dict(zip(IN_STEP, own, strict=True)), "data": 0.0})
        for number, own in enumerate(parts)
    ]  # fmt: skip
    record = RunRecord(PROFILED.run, steps)
    each = slowest(phase_steps(record))
    assert each[list(IN_STEP)].sum(axis=1).to_numpy() == pytest.approx(load_run(record, {}).seconds)


def slower_and_worse(step: Step) -> Step:
    """Twice the time and a quarter more loss."""
    assert step.phases is not None and step.loss is not None
    doubled = {name: 2 * seconds for name, seconds in step.phases.items()}
    return replace(step, loss=step.loss * 1.25, seconds=step.seconds * 2, phases=doubled)


def test_a_profiled_run_is_held_against_the_timed_one(table: pd.DataFrame, tmp_path: Path) -> None:
    assert set(pick(table, "profile", "profile_deviation")["value"]) == {0.0}
    runs = write_records(tmp_path, STUDY)
    spec = spec_of(**PROFILE)
    edit_steps(run_folder(runs, spec), slower_and_worse)
    rows = build(Study.of(STUDY), runs)
    rows = rows[(rows["run_id"] == spec.run_id)].set_index("metric")
    assert rows.loc["profile_deviation", "value"] == pytest.approx(0.25)
    assert rows.loc["profile_deviation", "base"] == "fake/dps/n2/r0"
    assert rows.loc["profile_slowdown", "value"] == pytest.approx(2, rel=0.1)


def test_a_profiled_run_that_failed_is_named(tmp_path: Path) -> None:
    runs = write_records(
        tmp_path,
        STUDY,
        lambda spec: ("oom", "no memory") if spec.profile and spec.cell == "dps" else fail(spec),
    )
    table = build(Study.of(STUDY), runs)
    [note] = Results(table).not_profiled
    assert "oom in 3 of 3 runs at 1, 2 and 4 nodes (no memory)" in note
    assert not any("no memory" in note for note in Results(table).missing)
    phases = table[table["metric"].str.startswith("phase_")]
    assert "dps" not in set(phases["cell"]) and "horovod" in set(phases["cell"])


def test_a_record_with_another_time_limit_is_of_the_same_study(tmp_path: Path) -> None:
    runs = write_records(tmp_path, STUDY)
    longer = {**STUDY, "timeout_seconds": STUDY["timeout_seconds"] + 1}
    longer["workload"] = STUDY["workload"] | {"checkpoint_every": 3}
    same = Study.of(longer)
    assert len(read_all(same, expand(same), runs)) == len(expand(Study.of(STUDY)))
    other = {**longer, "workload": longer["workload"] | {"untimed_steps": 1}}
    with pytest.raises(RecordError, match=r"workload\.untimed_steps is .*, the study says 1"):
        read_all(Study.of(other), expand(Study.of(other)), runs)


def test_a_pipeline_s_bubble_by_its_formula_is_beside_what_was_measured(tmp_path: Path) -> None:
    pipeline = {"strategy": "pipeline_parallel", "options": {"ranks": 2, "microbatches": 2}}
    cells = [c | (pipeline | {"nodes": [4]} if c["name"] == "dps" else {}) for c in STUDY["cells"]]
    table = make_table(**PROFILE, cells=cells)
    share = row_of(table, "phase_bubble_formula", "dps", 4)
    count = 2 * spec_of(nodes=4, **PROFILE, cells=cells).workload.accumulation_steps
    assert share["value"] == pytest.approx(1 / count), "(p - 1) / m"
    assert len(pick(table, "cell", "phase_bubble_formula")) == 1


ROUNDS: dict[str, Any] = {
    "cells": [
        a_cell("single", "single", nodes=[1]),
        a_cell("dps"),
        a_cell("local", "local_sgd", options={"inner_steps": 5}),
    ],
    "compares": ["schedule"],
    "profile": {"steps": 10},
}


def test_times_are_means_of_rounds() -> None:
    """Of ten timed steps every fifth takes ten times as long: a median would not see it."""
    record = make_record(spec_of("local", **ROUNDS))
    slow = [
        replace(step, seconds=1.0 if step.step % 5 == 4 else 0.1, phases=None)
        for step in record.steps
    ]
    record = type(record)(record.run, slow)
    assert np.allclose(load_run(record, {}).timed_seconds, [0.28, 0.28])
    assert np.allclose(phase_steps(record)["step"], 0.28)


def test_the_loss_is_drawn_over_bytes_where_steps_differ() -> None:
    table = make_table(**ROUNDS)
    verdict = row_of(table, "parity_verdict", "local", 4)
    assert verdict["text"].startswith("not compared"), "to the parity of another step"
    assert "Sent so far" not in words(draw("loss_step", table)), "nothing was counted"
    counted = table["metric"].astype(str).str.replace("predicted_sent_bytes:", "sent_bytes:")
    table = table.assign(metric=counted)
    figure = draw("loss_step", table)
    assert "Sent so far [MB]" in words(figure) and "Steps differ by intent" in words(figure)
    often, seldom = (float(np.max(line.get_xdata())) for line in figure.axes[1].lines[:2])
    assert often == pytest.approx(5 * seldom)
    alike = table[table["metric"] != "compares"]
    assert "Sent so far" not in words(draw("loss_step", alike))
