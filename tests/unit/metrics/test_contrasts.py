"""Who is faster, who may say so, and what a condition of a link costs."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from pipeline.metrics import table as tidy
from pipeline.metrics.cells import CellRuns
from pipeline.metrics.contrasts import contrast_rows, fewest_repeats, largest_family
from pipeline.metrics.results import Results, SpeedTest
from pipeline.metrics.runs import load_run
from pipeline.metrics.statistics import Interval, interval_of_ratio
from pipeline.metrics.table import check
from pipeline.records import RunRecord, Step
from pipeline.study.expansion import expand
from pipeline.study.spec import RunSpec
from pipeline.study.study import Study
from tests.fake_records import (
    CONDITIONED,
    CONDITIONS,
    EMULATED,
    PLAIN,
    a_cell,
    edit_steps,
    edited_table,
    make_record,
    make_study,
    make_table,
    pick,
    row_of,
    spec_of,
    table_of,
    with_steps,
)

CELLS = [a_cell("a", "single", nodes=[1]), a_cell("b"), a_cell("c", "horovod")]
Seconds = Callable[[RunSpec], float]


def spread(centre: float, repeat: int) -> float:
    """Run medians around a centre, 1 % apart, so that cells at one centre mix."""
    return centre * (1 + 0.01 * ((repeat * 5) % 7 - 3))


def measure(seconds: Seconds, **changes: Any) -> pd.DataFrame:
    """The table of a study of three cells whose runs have steps of these many seconds."""
    study = make_study(**{"cells": CELLS, "repeats": 6, **changes})
    made = (make_record(spec) for spec in expand(Study.of(study)))
    records = [
        with_steps(one.run, [timed(step, seconds(one.spec)) for step in one.steps]) for one in made
    ]
    table = table_of(study, records)
    tidy.check(table, "test")
    return table


def timed(step: Step, seconds: float) -> Step:
    return replace(step, seconds=seconds * (1 + 0.001 * (step.step % 5)))


def by_cell(**centres: float) -> Seconds:
    return lambda spec: spread(centres[spec.cell] * (1 + spec.world.nodes), spec.repeat)


def faster(table: pd.DataFrame, one: str, other: str, nodes: int) -> SpeedTest:
    found = Results(table).compared((one, nodes), (other, nodes))
    assert found is not None
    return found


def test_cells_apart_are_faster_and_slower_both_ways() -> None:
    table = measure(by_cell(a=0.1, b=0.2, c=0.4))
    found = faster(table, "b", "c", 2)
    assert found.verdict == "faster"
    assert found.low <= found.ratio <= found.high
    assert found.ratio == pytest.approx(2.0)
    # Three pairs: the exact p-value of 6 against 6 that do not overlap, times the pairs left.
    assert found.n == 6 and found.p_value == pytest.approx(2 / 924)
    names = ("effect_size", "largest_effect_size")
    effect, largest = (pick(table, "comparison", name)["value"].max() for name in names)
    assert effect == pytest.approx(largest) == pytest.approx(3 * 36 / 143)
    turned = faster(table, "c", "b", 2)
    assert turned.verdict == "slower"
    assert (turned.low, turned.high) == pytest.approx((1 / found.high, 1 / found.low))
    assert faster(table, "a", "c", 1).p_value == pytest.approx(3 * 2 / 924)


def test_neither_cells_that_mix_nor_an_interval_without_the_test_are_decided() -> None:
    found = faster(measure(by_cell(a=0.1, b=0.2, c=0.201)), "b", "c", 4)
    assert found.verdict == "undecided" and found.low < 1 < found.high
    found = faster(measure(by_cell(a=0.2, b=0.2, c=0.2075)), "a", "c", 1)
    assert found.verdict == "undecided" and found.low > 1 and found.p_value > 0.05


@pytest.mark.parametrize(
    ("bias", "verdict"), [(None, "undecided"), (0.1, "faster"), (0.3, "undecided")]
)
def test_faster_on_emulated_nodes_is_farther_apart_than_they_are_off(bias, verdict) -> None:
    """The second is slower by a quarter; a ratio between real nodes has no such bias."""
    groups = {}
    for name, centre in (("b", 0.2), ("c", 0.25)):
        spec = spec_of(name, nodes=None, cells=CELLS, repeats=6)
        runs = [
            load_run(RunRecord(make_record(spec).run, [
                timed(step, spread(centre, repeat)) for step in make_record(spec).steps
            ]), {"cell": name, "label": name, "cell_order": 0, "precision_ran": "fp32",
                 "arm": name, "arm_label": name})
            for repeat in range(6)
        ]  # fmt: skip
        groups[name, spec.world.nodes] = CellRuns(runs)
    for network in ("emulated", "loopback"):
        for group in groups.values():
            group.context["network"] = network
        frames = contrast_rows(groups, (), (), bias)
        told = pick(tidy.assemble(frames), "comparison", "speed_verdict")["text"].tolist()
        assert told == [verdict if network == "emulated" else "faster"]


def test_a_cell_is_compared_with_the_base_of_its_speedup() -> None:
    table = measure(by_cell(a=0.1, b=0.01, c=0.4))
    faster_one, slower_one = (Results(table).compared((cell, 4), ("a", 1)) for cell in ("b", "c"))
    assert faster_one and slower_one
    assert (faster_one.verdict, slower_one.verdict) == ("faster", "slower")
    speedup = row_of(table, "speedup", "b", 4)
    bounds = (faster_one.low, faster_one.ratio, faster_one.high)
    assert bounds == (speedup["low"], speedup["value"], speedup["high"])
    assert Results(table).compared(("a", 1), ("a", 1)) is None


def test_unequal_work_is_not_compared_unless_declared() -> None:
    cells = [*CELLS[:2], CELLS[2] | {"workload": {"global_batch": 32}}]
    table = measure(by_cell(a=0.1, b=0.2, c=0.4), cells=cells)
    found = faster(table, "b", "c", 2)
    assert found.verdict == "not compared: not the same global batch" and not found.compared
    assert faster(table, "a", "b", 1).verdict == "faster"
    declared = measure(by_cell(a=0.1, b=0.2, c=0.4), cells=cells, compares=["global_batch"])
    # Twice the work in twice the time: the rates are the same.
    assert faster(declared, "b", "c", 2).ratio == pytest.approx(1.0)


def test_another_training_is_not_compared(tmp_path: Path) -> None:
    def edit(runs: Path) -> None:
        for folder in runs.glob("c/n2/r*"):
            edit_steps(folder, lambda step: replace(step, grad_norm=2 * (step.grad_norm or 0)))

    table = edited_table(tmp_path, edit, cells=CELLS, repeats=6)
    assert faster(table, "b", "c", 2).verdict.endswith("c did not compute the same training")
    assert faster(table, "b", "c", 4).compared


@pytest.mark.parametrize("changes", [{}, {"cluster": EMULATED}], ids=["loopback", "two links"])
def test_the_largest_family_is_predicted_from_the_study(changes: Any) -> None:
    """Of three cells on one node and two on more: three pairs on one, and four with their base."""
    table = measure(lambda spec: 0.1, **changes)
    texts = pick(table, "comparison", "p_value")["text"]
    found = max(int(text.partition("corrected for ")[2].split()[0]) for text in texts)
    assert largest_family(Study.of(make_study(cells=CELLS, **changes))) == (
        found,
        "cells against their base",
    )
    assert found == 4


def test_six_repeats_decide_fifteen_pairs_and_five_do_not() -> None:
    # A single pair could be decided by four, which have no interval.
    assert fewest_repeats(15) == fewest_repeats(1) == 6 and fewest_repeats(40) > 6


def with_links(*links: dict[str, Any]) -> pd.DataFrame:
    """One repeat of that study over other links."""
    cluster = CONDITIONS["cluster"] | {"links": list(links)}
    return make_table(**CONDITIONS | {"repeats": 1, "cluster": cluster})


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return make_table(**CONDITIONS)


@pytest.fixture(scope="module")
def found(table: pd.DataFrame) -> pd.DataFrame:
    return Results(table).against_plain


def step_seconds(table: pd.DataFrame, cell: str) -> Interval:
    row = row_of(table, "step_seconds", cell, 4)
    return Interval(row["value"], row["low"], row["high"], row["n"], row["interval"])


def test_every_cell_under_a_condition_has_a_ratio_of_step_times(table, found) -> None:
    check(table, "here")
    conditions = ["straggler", "jitter", "asymmetric", "oversubscribed"]
    assert found["condition"].tolist() == [c for c in conditions for _ in range(3)]
    assert found["arm"].tolist() == ["sps", "dps", "horovod"] * 4
    adds = ["one node at 0.5 speed", "jitter 0.3", "receives 250 Mbit/s", "uplink 1 Gbit/s"]
    assert found["adds"].tolist() == [text for text in adds for _ in range(3)]
    assert set(found["nodes"]) == {4}
    for row in found.to_dict("records"):
        one, plain = (step_seconds(table, name) for name in (row["cell"], row["plain"]))
        expected = interval_of_ratio(one, plain)
        ratio = (row["ratio"], row["low"], row["high"])
        assert ratio == pytest.approx((expected.value, expected.low, expected.high))
        assert row["interval"] == expected.how
        assert (row["seconds"], row["plain_seconds"]) == (one.value, plain.value)


def test_the_words_are_of_the_test_and_of_the_interval(found: pd.DataFrame) -> None:
    slow = found[found["cell"] == "dps-straggler"].iloc[0]
    assert slow["verdict"] == "slower" and slow["low"] > 1.5
    # Three cells over one link: the exact p-value of 6 against 6, times the three.
    assert found["p_value"].min() == pytest.approx(3 * 2 / 924)
    assert found["p_value"].max() <= 1
    near = found[found["cell"] == "dps-oversubscribed"].iloc[0]
    assert near["verdict"] == "undecided" and near["low"] < 1 < near["high"]


def test_each_rate_has_its_own_reference_or_none() -> None:
    slow = {"rate_mbits": 200}
    links = [PLAIN, PLAIN | {"name": "plain-slow"} | slow, PLAIN | {"name": "j", "jitter": 0.3}]
    links.append(links[-1] | {"name": "j-slow"} | slow)
    made = Results(with_links(*links)).against_plain
    pairs = dict(zip(made["cell"], made["plain"], strict=True))
    assert pairs["dps-j"] == "dps-plain" and pairs["dps-j-slow"] == "dps-plain-slow"
    none = Results(with_links(PLAIN | {"rate_mbits": 500}, *CONDITIONED["links"][1:])).against_plain
    assert none.empty and "ratio" in none.columns
