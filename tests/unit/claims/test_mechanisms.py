"""Claims on bytes, bubbles and phases: counted without noise, or decided by profiled runs."""

import math
from dataclasses import replace
from functools import cache
from typing import Any

import pandas as pd
import pytest

from pipeline import strategies
from pipeline.claims import decide, kinds
from pipeline.claims.decide import corrected
from pipeline.claims.judge import judge
from pipeline.claims.load import FOLDER, load_claims
from pipeline.claims.types import (
    NOT_REPRODUCED,
    NOT_TESTABLE,
    REPRODUCED,
    UNDECIDED,
    Claim,
    Selector,
)
from pipeline.claims.worlds import Evidence, matches
from pipeline.claims.write import effect_text, to_dict
from pipeline.metrics.statistics import MIN_REPEATS, Interval
from pipeline.study.expansion import expand, profiled
from pipeline.study.load import CONFIG, load_study, shipped_studies
from pipeline.study.spec import RunSpec
from pipeline.study.study import Study
from tests.claims_worlds import CLAIMS, REPEATS, a_claim, make_world, on, selectors, with_rows
from tests.fake_records import altered

CLUSTER = {"device": "cpu", "ranks_per_node": 1, "nodes": [4], "backend": "gloo",
           "network": "emulated", "cores_per_node": 1,
           "links": [{"name": "1gbit", "rate_mbits": 1000}]}  # fmt: skip


@pytest.fixture(scope="module")
def world() -> Evidence:
    """Two cells; neither has counted bytes or a bubble before `add` gives it some."""
    made = make_world("ddp", "ring", cluster=CLUSTER)
    about = made.results.table["metric"].str.contains("sent_bytes|nodes_bytes|phase_bubble")
    return on(made, made.results.table[~about])


def add(world: Evidence, rows: list[dict[str, Any]]) -> Evidence:
    """The world with these rows; each has its cell's name and what that cell's rows share."""
    shared = {place["cell"]: place for place in world.results.places}
    whole = pd.DataFrame([{**shared[row["cell"]], "text": None, **row} for row in rows])
    return with_rows(world, whole)


def sent(cell: str, axis: str, *of_ranks: float, run: str = "p0", name: str = "sent_bytes") -> Any:
    return [
        {"cell": cell, "level": "profile", "metric": f"{name}:{axis}", "rank": rank,
         "value": value, "run_id": f"world/{cell}/n4/{run}"}
        for rank, value in enumerate(of_ranks)
    ]  # fmt: skip


def bubble(cell: str, *ends: float, formula: float) -> Any:
    """A profiled run for each of `REPEATS`, two at each of three ends."""
    rows = [
        {"cell": cell, "level": "profile", "metric": "phase_bubble", "value": ends[number // 2],
         "run_id": f"world/{cell}/n4/p{number}"}
        for number in range(REPEATS)
    ]  # fmt: skip
    formula_row = {"cell": cell, "level": "cell", "metric": "phase_bubble_formula"}
    return [*rows, {**formula_row, "value": formula}]


def claim(kind: str, metric: str, comparison: str, bound: float, tolerance: float = 0.0) -> Claim:
    pair = {"a": "a", "b": "b"} if kind == "ratio" else {"a": "a"}
    test = {"kind": kind, "metric": metric, **pair, "where": "several_nodes",
            "comparison": comparison, "bound": bound}  # fmt: skip
    return a_claim(test | ({"tolerance": tolerance} if tolerance else {}))


def test_one_run_has_its_bytes_exactly(world: Evidence) -> None:
    """The rank that sends most counts, over all axes or along one; no correction, no interval."""
    rows = [*sent("ddp", "data", 60, 80), *sent("ddp", "tensor", 40, 0), *sent("ring", "data", 50)]
    counted = add(world, rows)
    found = judge(claim("ratio", "sent_bytes", "about", 2, 0.01), counted)
    assert found.verdict == REPRODUCED and found.p_value is None, found.line
    # Two cells of six profiled runs each.
    assert "in 12 profiled runs" in found.scale and found.runs[0] == "world/ddp/n4/p0"
    assert "bytes sent in a step of ddp over ring is 2.00 (counted)" in found.why
    [after] = corrected([found])
    assert after == found
    assert effect_text(to_dict(found)).endswith("(counted)")
    along = judge(claim("ratio", "sent_bytes:data", "above", 1.6), counted)
    assert along.effect is not None and along.effect.value == pytest.approx(1.6)
    assert "along the axis data" in along.why
    assert judge(claim("ratio", "sent_bytes", "below", 1), counted).verdict == NOT_REPRODUCED


def test_bytes_between_nodes_are_counted_too(world: Evidence) -> None:
    rows = [*sent("ddp", "data", 0, 10, name="between_nodes_bytes"), *sent("ddp", "data", 80),
            *sent("ring", "data", 40, name="between_nodes_bytes")]  # fmt: skip
    counted = add(world, rows)
    found = judge(claim("ratio", "between_nodes_bytes", "below", 0.5), counted)
    assert found.verdict == REPRODUCED and found.p_value is None, found.line
    assert "bytes sent between nodes in a step of ddp over ring is 0.25" in found.why


@pytest.mark.parametrize(
    ("kind", "metric", "rows", "verdict", "why"),
    [
        ("ratio", "sent_bytes", sent("ring", "data", 50), NOT_TESTABLE, "no profiled run of ddp"),
        # Bytes that differ from run to run are no count.
        ("ratio", "sent_bytes",
         [*sent("ddp", "data", 80), *sent("ddp", "data", 90, run="p1"), *sent("ring", "data", 50)],
         UNDECIDED, "no interval: 2 of the 6 runs"),
    ],
)  # fmt: skip
def test_few_profiled_runs_decide_nothing(world, kind, metric, rows, verdict, why) -> None:
    found = judge(claim(kind, metric, "above", 1), add(world, rows))
    assert found.verdict == verdict and why in found.why, found.line


def test_bytes_are_held_against_the_formula(world: Evidence) -> None:
    rows = [*sent("ddp", "data", 101.0), *sent("ddp", "data", 100.0, name="predicted_sent_bytes")]
    counted = add(world, rows)
    near = claim("formula", "sent_bytes:data", "about", 1, 0.02)
    assert judge(near, counted).verdict == REPRODUCED
    exact = claim("formula", "sent_bytes:data", "about", 1, 0.001)
    assert judge(exact, counted).verdict == NOT_REPRODUCED


@pytest.mark.parametrize(
    ("ends", "verdict"),
    [
        ((0.74, 0.76, 0.78), REPRODUCED),
        ((0.90, 0.95, 0.99), NOT_REPRODUCED),
        ((0.74, 0.80, 0.90), UNDECIDED),
    ],
)
def test_a_bubble_is_decided_by_its_interval(world, ends, verdict) -> None:
    replayed = add(world, bubble("ddp", *ends, formula=0.75))
    found = judge(claim("formula", "phase_bubble", "about", 1, 0.1), replayed)
    assert found.verdict == verdict, found.line
    assert "bubble of ddp over its formula" in found.why
    assert "in 6 profiled runs" in found.scale and len(found.runs) == 6
    # Six runs against a number: the sign test, twice one in 64.
    assert found.p_value == (None if verdict == UNDECIDED else pytest.approx(1 / 32))


@pytest.mark.parametrize(("alone", "verdict"), [(0.75, UNDECIDED), (0.95, NOT_REPRODUCED)])
def test_a_bubble_of_unequal_passes_says_nothing_of_its_schedule(world, alone, verdict) -> None:
    schedule = {"cell": "ddp", "level": "cell", "metric": "phase_bubble_schedule", "value": alone}
    rows = [*bubble("ddp", 0.95, 0.96, 0.97, formula=0.75), schedule]
    found = judge(claim("formula", "phase_bubble", "about", 1, 0.1), add(world, rows))
    assert found.verdict == verdict, found.line
    assert ("with passes of equal length 1" in found.why) == (verdict == UNDECIDED)


@pytest.mark.parametrize(("libraries", "verdict"), [(0, REPRODUCED), (276, UNDECIDED)])
def test_memory_of_the_libraries_makes_no_two_cells_alike(world, libraries, verdict) -> None:
    """71 MiB are no twentieth more than 59, and 347 of 335 are, with 276 of libraries in both."""
    table = altered(world.results.table, {"metric": "base_memory_bytes"}, value=libraries)
    for cell, mebibytes in (("ddp", 347), ("ring", 335)):
        peak = {"metric": "peak_memory_bytes", "cell": cell}
        table = altered(table, peak, value=mebibytes)
    alike = claim("ratio", "peak_memory_bytes", "below", 1.05)
    found = judge(alike, on(world, table))
    assert found.verdict == verdict, found.line
    assert ("without Python and its libraries 1.20" in found.why) == (verdict == UNDECIDED)


def test_bubbles_are_no_times_that_emulation_bends(world: Evidence) -> None:
    rows = [*bubble("ddp", 0.36, 0.37, 0.38, formula=0.375),
            *bubble("ring", 0.74, 0.75, 0.76, formula=0.75)]  # fmt: skip
    found = judge(claim("ratio", "phase_bubble", "about", 0.5, 0.1), add(world, rows))
    assert found.verdict == REPRODUCED, found.line
    others = [replace(found, claim=replace(found.claim, id=f"c{n}"), p_value=1.0) for n in range(6)]
    assert corrected([found, *others])[0].verdict == REPRODUCED, "one of seven tested claims"


def test_steps_are_the_same_where_parity_holds(world: Evidence) -> None:
    same = a_claim({"kind": "same_steps", "cells": ["a", "b"]})
    equal = altered(world.results.table, {"metric": "parity_verdict"}, text="equal")
    for word, verdict in (
        ("equal", REPRODUCED),
        ("NOT EQUAL", NOT_REPRODUCED),
        ("not compared: no single-device run", NOT_TESTABLE),
    ):
        table = altered(equal, {"metric": "parity_verdict", "cell": "ring"}, text=word)
        found = judge(same, on(world, table))
        assert (found.verdict, found.effect) == (verdict, None), found.line
        assert "ring" in found.why and corrected([found]) == [found]


@cache
def shipped() -> list[Study]:
    """Every study, read once: it takes seconds."""
    return [load_study(path) for path in shipped_studies().values()]


@pytest.mark.parametrize("paper", ["ptdp2021", "gspmd2021", "mtnlg2022", "alpa2022"])
def test_each_selector_of_a_mechanism_means_one_cell_of_its_studies(paper: str) -> None:
    """At least one study has it, and none twice."""
    studies = [one for one in shipped() if paper in one.claims]
    runs = [run for one in studies for run in expand(one) if run.repeat == 0]
    for one in load_claims(FOLDER / paper / "claims.yaml"):
        for selector in (each for each in selectors(one) if each.precision == "fp32"):
            found = {(run.study, run.cell) for run in runs if means(selector, run)}
            assert found, (one.id, str(selector))
            assert len({study for study, _ in found}) == len(found), (one.id, str(selector), found)


def means(want: Selector, run: RunSpec) -> bool:
    """As of the rows of a table of metrics; of any model."""
    layout, work = strategies.load(run.strategy, run.options).layout(run.world), run.workload
    row = {
        "strategy": run.strategy,
        "precision": run.precision,
        "global_batch": work.global_batch,
        "data_devices": layout.data_devices,
        "nodes": run.world.nodes,
        "accumulation": work.accumulation_steps,
        "scaling": work.scaling,
        "axes": dict(layout.axes),
    }
    return matches(row, run.options, replace(want, parameters=None))


@pytest.mark.parametrize(
    ("study", "claim", "wired"),
    [
        ("one-node", "horovod-symmetric-time", False),
        ("bai2022", "horovod-symmetric-time", False),
        ("bai2022", "sublinear-by-communication", True),
    ],
)
def test_a_shipped_study_has_the_profiled_runs_that_decide(study, claim, wired) -> None:
    found = load_study(CONFIG / study / "study.yaml")
    test = CLAIMS[claim].test
    for want in test.get("cells", [test.get("a"), test.get("b")]):
        runs = [
            spec
            for spec in profiled(found)
            if (spec.strategy, spec.precision) == (want.strategy, want.precision)
            and spec.world.size > 1
            and (spec.world.nodes > 1 and spec.world.network == "real") == wired
        ]
        assert len(runs) >= MIN_REPEATS, want.name


@pytest.mark.parametrize(
    ("off", "ends"),
    [
        (1.0, (0.8, 0.8)),
        # A step that is a quarter longer, by its computation; a fifth shorter, by the same.
        (1.25, (0.6 / (1.25 - 0.25), 0.6 / (0.8 - 0.25))),
        (4.0, (-math.inf, math.inf)),  # a step of a quarter would lose nothing
    ],
)
def test_a_share_of_lost_speedup_is_bent_by_either_part_of_a_step(off, ends) -> None:
    """Of an emulated step of 1 communication is 0.6, and an ideal one would take 0.25."""
    exposed, kept = (Interval(value, value, value, 6, "") for value in (0.6, 0.25))
    assert kinds._bent_share(off, exposed, kept) == pytest.approx(ends)


@pytest.mark.parametrize(
    ("high", "text"), [(1.1, "1.05 [1.00, 1.10]"), (1.1026, "1.050 [1.000, 1.103]")]
)
def test_no_bound_is_rounded_onto_what_was_claimed(high: float, text: str) -> None:
    assert decide.effect_text(Interval(1.05, 1.0, high, 6, ""), (0.9, 1.1)) == text
