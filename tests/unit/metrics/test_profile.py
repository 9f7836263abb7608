"""Rows of profiled runs, rounds of steps, and bubbles whose idle time is known."""

import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.cost.schedule import order
from pipeline.errors import RecordError
from pipeline.metrics.build import read_all
from pipeline.metrics.profile import (
    Pass,
    bubble,
    levelled,
    makespan,
    phase_steps,
    slowest,
    step_bubbles,
)
from pipeline.metrics.runs import load_run
from pipeline.records import RunRecord, Step
from pipeline.strategies import load
from pipeline.strategies.pipeline_parallel import plan
from pipeline.study.expansion import expand
from pipeline.study.profiling import BACKWARD, FORWARD, IN_STEP, WEIGHTS
from pipeline.study.spec import WorldSpec
from pipeline.study.study import Study
from tests.fake_records import (
    a_cell,
    edit_steps,
    edited_table,
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
    each = slowest(phase_steps(load_run(record, {})))
    assert each[list(IN_STEP)].sum(axis=1).to_numpy() == pytest.approx(load_run(record, {}).seconds)


def slower_and_worse(step: Step) -> Step:
    """Twice the time and a quarter more loss."""
    assert step.phases is not None and step.loss is not None
    doubled = {name: 2 * seconds for name, seconds in step.phases.items()}
    return replace(step, loss=step.loss * 1.25, seconds=step.seconds * 2, phases=doubled)


def test_a_profiled_run_is_held_against_the_timed_one(table: pd.DataFrame, tmp_path: Path) -> None:
    assert set(pick(table, "profile", "profile_deviation")["value"]) == {0.0}
    profiled = spec_of(**PROFILE).run_id
    rows = edited_table(
        tmp_path, lambda runs: edit_steps(runs / "dps/n2/p0", slower_and_worse), **PROFILE
    )
    rows = rows[(rows["run_id"] == profiled)].set_index("metric")
    assert rows.loc["profile_deviation", "value"] == pytest.approx(0.25)
    assert rows.loc["profile_deviation", "base"] == "fake/dps/n2/r0"
    assert rows.loc["profile_slowdown", "value"] == pytest.approx(2, rel=0.1)


def test_a_record_with_another_time_limit_is_of_the_same_study(tmp_path: Path) -> None:
    runs = write_records(tmp_path, STUDY)
    longer = {**STUDY, "timeout_seconds": STUDY["timeout_seconds"] + 1}
    longer["workload"] = STUDY["workload"] | {"checkpoint_every": 3}
    same = Study.of(longer)
    assert len(read_all(same, expand(same), runs)) == len(expand(Study.of(STUDY)))
    other = {**longer, "workload": longer["workload"] | {"untimed_steps": 1}}
    with pytest.raises(RecordError, match=r"workload\.untimed_steps is .*, the study says 1"):
        read_all(Study.of(other), expand(Study.of(other)), runs)


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
    assert np.allclose(phase_steps(load_run(record, {}))["step"], 0.28)


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


def lines_of(schedule: str, ranks: int, count: int, backward: float = 2.0) -> dict[int, list[Pass]]:
    """The passes of each rank in the order that it runs them; a forward pass takes one second."""
    seconds, chunks = {FORWARD: 1.0, BACKWARD: backward, WEIGHTS: backward}, plan.CHUNKS[schedule]
    return {
        rank: [(*one, seconds[one[0]]) for one in order(schedule, ranks, chunks, count, rank)]
        for rank in range(ranks)
    }


def gpipe(count: int) -> dict[int, list[Pass]]:
    """Two stages."""
    return lines_of("gpipe", 2, count)


@pytest.mark.parametrize(
    ("name", "ranks", "count", "expected"),
    [
        ("gpipe", 2, 2, 1 / 2),
        ("gpipe", 4, 8, 3 / 8),
        ("1f1b", 4, 8, 3 / 8),
        ("interleaved", 2, 2, 1 / 4),
        # Where all parts take one second, gradients of weights fill two thirds of 1F1B's half.
        ("zero_bubble", 2, 2, 1 / 6),
    ],
)
def test_equal_stages_have_the_bubble_of_the_formula(name, ranks, count, expected) -> None:
    passes = lines_of(name, ranks, count, backward=1.0 if name == "zero_bubble" else 2.0)
    assert bubble(passes) == pytest.approx(expected)
    assert plan.bubble(name, ranks, plan.CHUNKS[name], count) == pytest.approx(expected)


def test_a_longer_last_stage_lengthens_it() -> None:
    passes = gpipe(4)
    passes[1] = [(kind, stage, m, 2 * seconds) for kind, stage, m, seconds in passes[1]]
    # the last stage is busy for 24 s after 1 s of the first, whose last pass ends it: 27 s
    assert makespan(passes) == 27
    assert bubble(passes) == pytest.approx(2 * 27 / 36 - 1)
    equal = levelled(passes, lambda _, one: one[0], statistics.fmean)
    assert bubble(equal) == pytest.approx(1 / 4), "the schedule alone: (p - 1) / m"


def test_passes_that_wait_for_ever_are_refused() -> None:
    passes = gpipe(1)
    passes[0].reverse()
    with pytest.raises(RecordError, match=r"rank 0 waits for ever before its pass \('backward', 0"):
        bubble(passes)


def test_a_record_gives_a_bubble_for_each_timed_step() -> None:
    layout = load("pipeline_parallel", {"ranks": 2}).layout(WorldSpec(4, 1, "cpu", "gloo", "real"))
    record = make_record(spec_of(nodes=4, profile={"steps": 4}))
    # ranks 0 and 2 are one pipeline of two stages, 1 and 3 the other
    passes = {0: gpipe(2)[0], 2: gpipe(2)[1], 1: gpipe(4)[0], 3: gpipe(4)[1]}
    steps = [replace(step, passes=passes[step.rank]) for step in record.steps]
    made = RunRecord(record.run, steps)
    assert step_bubbles(made, layout) == pytest.approx([(1 / 2 + 1 / 4) / 2] * 4)
    assert step_bubbles(record, layout) == []


@pytest.mark.parametrize(("network", "longer"), [("emulated", 0), ("real", 3)])
def test_a_pass_that_others_slowed_counts_as_its_like_on_emulated_nodes(network, longer) -> None:
    spec = spec_of(nodes=2, profile={"steps": 2})
    record = make_record(replace(spec, world=replace(spec.world, network=network)))
    layout = load("pipeline_parallel", {"ranks": 2}).layout(WorldSpec(2, 1, "cpu", "gloo", "real"))
    passes = gpipe(4)
    slowed = {**passes, 1: [(FORWARD, 1, 0, 4.0), *passes[1][1:]]}
    first = min(step.step for step in record.steps if step.timed)
    steps = [
        replace(step, passes=(slowed if step.step == first else passes)[step.rank])
        for step in record.steps
    ]
    whole, busy = 15 + longer, 24 + longer
    bubbles = step_bubbles(RunRecord(record.run, steps), layout)
    assert bubbles == pytest.approx([2 * whole / busy - 1, 1 / 4])


def test_a_core_that_is_slower_makes_no_bubble_where_nodes_change_cores() -> None:
    """Each stage is on the slow core in one of two steps, as `Nodes.move` has it."""
    spec = spec_of(nodes=2, profile={"steps": 2})
    record = make_record(replace(spec, world=replace(spec.world, network="emulated")))
    layout = load("pipeline_parallel", {"ranks": 2}).layout(WorldSpec(2, 1, "cpu", "gloo", "real"))
    passes = gpipe(4)
    slow = {rank: [(*one[:3], 1.1 * one[3]) for one in own] for rank, own in passes.items()}
    steps = [
        replace(step, passes=(slow if step.step % 2 == step.rank else passes)[step.rank])
        for step in record.steps
    ]
    assert step_bubbles(RunRecord(record.run, steps), layout) == pytest.approx([1 / 4] * 2)
