import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from pipeline.__main__ import main
from pipeline.figures import panels, theme
from pipeline.metrics import table as tidy
from pipeline.metrics.build import build
from pipeline.metrics.results import Results
from pipeline.study.study import Study
from tests.fake_records import (
    a_cell,
    edit_record,
    make_study,
    make_table,
    pick,
    row_of,
    write_records,
)
from tests.unit.figures.drawn import draw, words

NAMES = ["loss_step", "speedup", "step_time", "throughput", "time_split"]
PROFILE = {"steps": 8}


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return make_table(repeats=2, profile=PROFILE)


@pytest.fixture(scope="module")
def nothing() -> pd.DataFrame:
    """A study of which no run finished."""
    cells = [a_cell("a", "horovod", precision="apex_o1")]
    return make_table(repeats=1, cells=cells, profile=PROFILE)


@pytest.fixture(scope="module")
def drawn(table: pd.DataFrame) -> Callable[[str], Figure]:
    """Each figure of `table`, drawn once for all tests that only look at it."""
    return cache(lambda name: draw(name, table))


@pytest.mark.parametrize("name", NAMES)
def test_every_cell_is_shown_or_named_as_missing(name: str, drawn: Callable[[str], Figure]) -> None:
    said = words(drawn(name))
    for cell in make_study()["cells"]:
        assert cell["label"] in said
    assert said.count("unsupported in 6 of 6 runs at 1, 2 and 4 nodes") == 1
    assert "the table of status says why" in said and "apex.amp is not importable" not in said
    assert "all nodes share the cores of one machine" in said


def test_speedup_shows_intervals_and_the_ideal(drawn: Callable[[str], Figure]) -> None:
    figure = drawn("speedup")
    axes = figure.axes[0]
    assert "ideal scaling" in words(figure)
    assert "single, 1 node" in words(figure)
    ideal = [line for line in axes.lines if line.get_color() == "#8A8A8A"]
    ends = [(np.asarray(line.get_xdata())[-1], np.asarray(line.get_ydata())[-1]) for line in ideal]
    assert ends == [(pytest.approx(4.0), pytest.approx(4.0))]
    assert len(axes.containers) == 5


def test_the_largest_deviation_of_an_arm_at_each_step_is_drawn(table, drawn) -> None:
    loss, deviation = drawn("loss_step").axes
    apart = pick(table, "step", "loss_deviation")
    largest = apart.groupby(["arm", "step"])["value"].max().clip(1e-9).unstack("step")
    curves = [np.asarray(line.get_ydata()) for line in deviation.lines]
    for arm in largest.index:
        assert any(len(y) > 2 and np.allclose(y, largest.loc[arm]) for y in curves), arm
    # Equal curves lie on each other; each still has a marker where no other one has.
    places = [line.get_markevery() for line in loss.lines if np.size(line.get_xdata())]
    assert len({*places}) == len(places) > 4


def test_loss_against_time_is_that_of_the_runs_to_the_end_over_each_step_time(tmp_path) -> None:
    begin = {"steps": 8, "whole": ["single/n1", "dps/n2"]}
    study = make_study(repeats=2, beginnings=begin)
    runs = write_records(tmp_path, study)
    unseen = {"steps": 5, "unigram_entropy": 6.0}
    for run in ("single/n1/r0", "dps/n2/r0"):
        edit_record(runs / run, lambda one: one["ranks"][0].update(unseen_text=unseen))
    table = build(Study.of(study), runs)
    figure = draw("loss_step", table)
    _, over_time, _ = figure.axes
    seconds = [np.asarray(line.get_xdata(), dtype=float) for line in over_time.lines]
    ends = [float(each[-1]) for each in seconds if each.size]
    cells = ("sps", "dps", "horovod", "dps-amp")
    each = [30 * row_of(table, "step_seconds", cell, 4)["value"] for cell in cells]
    assert sorted(ends) == pytest.approx(sorted(each))
    said = words(figure)
    assert "is not of a run to the end of each cell" in said and "At step 30 runs of that" in said
    assert said.count("than the unigram entropy of that text (6.000)") == 2
    assert "Loss of the last 5 steps, on text that no step before had: Single" in said


@pytest.mark.parametrize("name", ["throughput", "speedup"])
def test_no_point_hides_another_and_cells_at_one_number_of_nodes_are_ranked(
    name: str, table: pd.DataFrame, drawn: Callable[[str], Figure]
) -> None:
    # Of arms: caps of intervals have no line, and the ideal one is grey.
    lines = [line for line in drawn(name).axes[0].lines
             if line.get_linestyle() != "None" and line.get_color() != theme.GREY]  # fmt: skip
    places = [x for line in lines for x in np.asarray(line.get_xdata())]
    assert len(places) > 4 and len({*places}) == len(places)
    single = table["cell"] == "single"
    axes = draw(name, table[table["cell"].isna() | single | (table["nodes"] == 4)]).axes[0]
    labels = [text.get_text() for text in axes.get_yticklabels()]
    assert axes.get_xlim()[0] == 0 and "single, 1 node" in labels
    ends = [float(np.asarray(line.get_xdata())[0]) for line in axes.lines
            if np.size(line.get_xdata()) == 1]  # fmt: skip
    assert ends == sorted(ends, reverse=True) and len(ends) == len(labels)


def test_a_cell_keeps_its_look_and_no_two_share_one() -> None:
    cells = [a_cell(f"c{i}") for i in range(12)]
    one = {**make_study()["cluster"], "nodes": [1]}
    looks = theme.styles(Results(make_table(repeats=1, cells=cells, cluster=one))).values()
    assert len({(look.colour, look.marker) for look in looks}) == 12


@pytest.mark.parametrize("name", NAMES)
def test_a_study_of_which_nothing_ran_still_draws(name: str, nothing: pd.DataFrame) -> None:
    said = words(draw(name, nothing))
    assert re.search("no (profiled )?run finished", said) and "unsupported" in said


def test_a_figure_of_unequal_work_is_refused(table, tmp_path, capsys) -> None:
    unequal = table.copy()
    unequal.loc[unequal["cell"] == "sps", "global_batch"] = 32
    tidy.write(unequal, tmp_path / "m.parquet")
    args = ["figure", "speedup", "--metrics", str(tmp_path / "m.parquet"), "--out", str(tmp_path)]
    assert main(args) == 2
    assert "figure speedup refuses: global_batch is 16" in capsys.readouterr().err
    assert not (tmp_path / "speedup.pdf").exists()


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (35, 1050, [50, 100, 200, 500, 1000]),
        (31, 170, [40, 50, 60, 80, 100, 150]),
        (0.88, 1.22, [0.9, 1.0, 1.1, 1.2]),
        (0.02, 7000, [0.1, 1, 10, 100, 1000]),
    ],
)
def test_a_logarithmic_axis_has_few_round_ticks(low, high, ticks) -> None:
    figure, axes = plt.subplots()
    panels.log_axis(axes.xaxis, low, high)
    assert list(axes.get_xticks()) == pytest.approx(ticks)
    assert axes.get_xlim() == (low, high)
    plt.close(figure)


@pytest.mark.parametrize("name", NAMES)
def test_no_text_of_a_figure_is_smaller_than_seven_points_in_print(name, drawn) -> None:
    """The paper draws a figure as wide as its text, so a point of it is a point in print."""
    template = Path("paper/template.typ").read_text(encoding="utf-8")
    margin = float(re.findall(r"margin: \(x: (\d+)mm", template)[0])
    assert "#set image(width: 100%)" in template
    assert pytest.approx((210 - 2 * margin) / 25.4, abs=0.01) == theme.WIDTH_INCHES
    figure = drawn(name)
    assert figure.get_figwidth() == theme.WIDTH_INCHES
    shown = [t for t in figure.findobj(Text) if isinstance(t, Text) and t.get_text().strip()]
    assert min(float(text.get_fontsize()) for text in shown) >= theme.LEAST_POINTS


def test_a_person_s_matplotlibrc_changes_no_figure() -> None:
    theme.apply()
    before = dict(matplotlib.rcParams)
    matplotlib.rcParams.update({"savefig.bbox": "tight", "lines.linewidth": 9, "axes.grid": False})
    theme.apply()
    assert dict(matplotlib.rcParams) == before
