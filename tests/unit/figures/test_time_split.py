"""The stacked figure of a step's time: its parts, its remarks and what it cannot tell."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from pipeline.metrics.build import build
from pipeline.metrics.format import significant
from pipeline.study.profiling import COMMUNICATION, IN_STEP
from pipeline.study.study import Study
from tests.fake_records import fail, make_study, make_table, row_of, write_records
from tests.unit.figures.drawn import draw, words

STUDY = make_study(profile={"steps": 8}, repeats=2)


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return make_table(profile={"steps": 8}, repeats=2)


def parts(figure: Figure, panel: int, place: int) -> list[Rectangle]:
    """The pieces of one bar, from left to right."""
    found = [p for p in figure.axes[panel].patches if isinstance(p, Rectangle)]
    return [p for p in found if abs(p.get_y() + p.get_height() / 2 - place) < 0.1]


def value(table: pd.DataFrame, metric: str, cell: str, nodes: int) -> float:
    return float(row_of(table, metric, cell, nodes)["value"])


def test_a_bar_is_the_phases_end_to_end_as_shares_of_the_step(table: pd.DataFrame) -> None:
    figure = draw("time_split", table)
    # The cells that ran, in the order of the study: single, sps, dps, horovod, dps-amp.
    bar = parts(figure, panel=2, place=2)
    assert len(bar) == len(IN_STEP)
    spent = [value(table, f"phase_mean_seconds:{name}", "dps", 4) for name in IN_STEP]
    expected = [100 * seconds / sum(spent) for seconds in spent]
    assert [p.get_width() for p in bar] == pytest.approx(expected)
    assert [p.get_x() for p in bar] == pytest.approx([0, *np.cumsum(expected)[:-1]])


def test_exposed_communication_has_a_colour_and_a_hatch_of_its_own(table: pd.DataFrame) -> None:
    bar = parts(draw("time_split", table), panel=1, place=1)
    looks = [(to_hex(p.get_facecolor()), p.get_hatch()) for p in bar]
    assert len({colour for colour, _ in looks}) == len(IN_STEP)
    place = IN_STEP.index(COMMUNICATION)
    assert looks[place][1] and looks[place][1] not in [
        h for i, (_, h) in enumerate(looks) if i != place
    ]


def test_the_share_of_exposed_communication_stands_at_each_bar(table: pd.DataFrame) -> None:
    figure = draw("time_split", table)
    share = value(table, "phase_share:communication", "sps", 4)
    said = [text.get_text().strip() for text in figure.axes[2].texts]
    whole = sum(value(table, f"phase_mean_seconds:{name}", "sps", 4) for name in IN_STEP)
    assert f"{100 * share:.0f} %, {significant(1000 * whole, 2)} ms" in said
    assert figure.axes[0].texts[0].get_text().startswith("0 %, ")


def test_a_cell_that_did_not_run_at_a_node_count_has_no_bar(table: pd.DataFrame) -> None:
    assert parts(draw("time_split", table), panel=1, place=0) == []


def test_it_says_what_the_network_was_and_what_the_bars_are(table: pd.DataFrame) -> None:
    said = words(draw("time_split", table))
    assert "all nodes share the cores of one machine" in said
    assert "Bars: means over 8 steps of profiled runs, of each its slowest rank." in said
    assert "exposed communication" in said
    assert re.search(r"Reading the batch, before the step, took [\d.]+ ms at most", said)


def test_one_rank_that_prepares_an_exchange_is_explained(table: pd.DataFrame) -> None:
    assert "With one rank nothing is exchanged" not in words(draw("time_split", table))
    own = table.copy()
    alone = (own["metric"] == "phase_mean_seconds:communication") & (own["nodes"] == 1)
    own.loc[alone & (own["cell"] == "dps"), "value"] = 0.01
    assert "With one rank nothing is exchanged" in words(draw("time_split", own))


def test_a_strategy_without_marks_is_named(table: pd.DataFrame) -> None:
    assert "no phases" not in words(draw("time_split", table))
    own = table.copy()
    marked = own["metric"].str.startswith("phase_mean_seconds:") & (own["cell"] == "dps")
    own.loc[marked & ~own["metric"].str.endswith((":rest", ":data")), "value"] = 0.0
    assert "dps marks no phases: of the step only its time is seen" in words(
        draw("time_split", own)
    )


def test_a_profiled_run_that_failed_alone_is_named_once(tmp_path: Path) -> None:
    runs = write_records(
        tmp_path,
        STUDY,
        lambda spec: ("oom", "no memory") if spec.profile and spec.cell == "dps" else fail(spec),
    )
    said = words(draw("time_split", build(Study.of(STUDY), runs)))
    assert said.count("(no memory)") == 1
    assert "Not profiled: Distributed Parameter Server (DDP): oom in 3 of 3 runs" in said
    assert said.count(": unsupported in ") == 1 and "apex.amp is not importable" not in said


def test_a_study_without_profiled_runs_says_so() -> None:
    figure = draw("time_split", make_table(repeats=1))
    assert "the study asks for no profiled runs" in words(figure)
