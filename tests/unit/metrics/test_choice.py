"""The choice of a prediction in each setting, over the fastest of the other cells."""

from __future__ import annotations

import json
import math
import re

import pytest

from pipeline.__main__ import main
from pipeline.cost.predict import Prediction
from pipeline.metrics.choice import Place, choices, settings
from pipeline.metrics.statistics import NO_INTERVAL, Interval, values_interval
from pipeline.planner import here
from pipeline.resolved import ResolvedRun, runs_of
from pipeline.study.load import find_study, load_study
from pipeline.text import NONE
from tests.fake_records import make_study, make_table, write_table


@pytest.fixture(scope="module")
def runs() -> tuple[ResolvedRun, ...]:
    return runs_of(load_study(find_study("alpa2022-search")))


def rows(cells: dict[Place, float]) -> list[dict[str, str]]:
    """Rows of `predict --study`, with one that is refused."""
    made = [
        {"cell": cell, "nodes": str(n), "step_s_pred": f"{x}"} for (cell, n), x in cells.items()
    ]
    return [*made, {"cell": "tensor-2500mbit", "nodes": "4", "step_s_pred": ""}]


def test_cells_of_one_batch_and_link_and_the_single_device_are_a_setting(runs) -> None:
    made = dict(settings(runs))
    assert list(made) == [
        f"4 nodes over {link}, {batch} sequences in fp32"
        for batch in (16, 128)
        for link in ("150 Mbit/s", "2.5 Gbit/s")
    ]
    few = made["4 nodes over 150 Mbit/s, 16 sequences in fp32"]
    assert few["single", 1] == "single on 1" and few["pipe-150mbit", 4] == "pipe on 4"
    assert not {"pipe-2500mbit", "single-many"} & {cell for cell, _ in few}


def test_fewer_nodes_are_candidates_and_another_step_is_none() -> None:
    (_, two), (_, four) = settings(runs_of(load_study(find_study("smoke"))))[:2]
    assert {nodes for _, nodes in two} == {1, 2}
    assert {nodes for _, nodes in four} == {1, 2, 4}
    late = settings(runs_of(load_study(find_study("less-sent"))))
    names = [{cell for cell, _ in candidates} for _, candidates in late]
    assert all(one.isdisjoint(other) for place, one in enumerate(names) for other in names[:place])


def test_the_choice_stands_beside_the_fastest_other_cell(runs) -> None:
    cells = {("single", 1): 0.2, ("pipe-150mbit", 4): 0.1, ("pipe-2500mbit", 4): 0.3}
    measured = {
        ("single", 1): values_interval([0.20, 0.21, 0.19, 0.20, 0.20, 0.21]),
        ("pipe-150mbit", 4): values_interval([0.25, 0.26, 0.25, 0.24, 0.25, 0.25]),
        # No prediction: it cannot be chosen.
        ("tensor-2500mbit", 4): values_interval([0.10] * 6),
        ("ddp-150mbit", 4): values_interval([0.9]),
    }
    _, slow, fast, last = choices(runs, rows(cells), measured, 0.04)
    assert slow.startswith("4 nodes over 150 Mbit/s, 16 sequences in fp32  pipe on 4")
    assert [word for word in slow.split() if word[0].isdigit()][4:] == [
        "100.0", "250.0", "1", "200.0", "200.0", "1.25", "1.30]"
    ]  # fmt: skip
    assert "single on 1" in fast and "tensor on 4" in fast and NONE in fast
    assert last == "Chosen in 0.04 s without a step: the fastest in 0 of 2 settings."


def test_few_runs_have_no_interval_and_a_choice_that_did_not_run_is_not_the_fastest(runs) -> None:
    seconds = {("single", 1): 0.1, ("pipe-150mbit", 4): 0.2}
    # As the table of metrics has them.
    measured = {at: Interval(x, math.nan, math.nan, 2, NO_INTERVAL) for at, x in seconds.items()}
    _, line, last = choices(runs, rows({("single", 1): 0.1}), measured, 0.04)
    assert line.endswith(" 0.50") and last.endswith("in 1 of 1 settings.")
    _, line, last = choices(runs, rows({("ddp-150mbit", 4): 0.1}), measured, 0.04)
    assert line.endswith("did not run") and last.endswith("in 0 of 1 settings.")
    assert choices(runs, rows({("single", 1): 0.1}), {}, 0.04) == []


def test_the_command_puts_the_choice_beside_results(tmp_path, monkeypatch, capsys) -> None:
    study, table = tmp_path / "study.json", write_table(make_table(repeats=6), tmp_path)
    study.write_text(json.dumps(make_study(repeats=6)))
    monkeypatch.setattr(here.Calibration, "read", lambda *_: None)
    one = Prediction(computation=1.0, communication=0.0, bubble=0.0, host=0.0, optimiser=0.0)
    monkeypatch.setattr(here, "predict", lambda *_: one)
    words = f"predict --study {study} --calibration {table} --metrics {table}"
    assert main(words.split()) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    line = next(line for line in lines if line.startswith("4 nodes, 16 sequences in fp32 "))
    assert re.search(r"single on 1 +1000\.0 .+ on 2 +1000\.0 .+\d\.\d\d \[\S+, \S+\]$", line)
    assert re.match(r"Chosen in \S+ s without a step: the fastest in \d of \d settings\.", last)
