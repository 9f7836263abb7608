"""Figures read back: points, intervals, panels of links, words and looks."""

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import to_hex
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.text import Text

from pipeline import figures, tables
from pipeline.__main__ import main
from pipeline.figures import theme
from pipeline.metrics import headline
from pipeline.metrics import table as tidy
from pipeline.metrics.contrasts import FASTER, SLOWER
from pipeline.metrics.results import Results
from pipeline.study.profiling import IN_STEP
from pipeline.text import significant
from tests.fake_records import (
    CONDITIONS,
    EMULATED,
    a_cell,
    altered,
    edit_record,
    edited_table,
    made,
    make_study,
    make_table,
    pick,
    row_of,
)
from tests.unit.figures.drawn import draw, words

NAMES = ["loss_step", "speedup", "step_time", "throughput", "time_split"]
PROFILE = {"steps": 8}


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return make_table(repeats=2, profile=PROFILE)


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
    largest = apart.groupby(["arm", "step"])["value"].max().clip(1e-8).unstack("step")
    curves = [np.asarray(line.get_ydata()) for line in deviation.lines]
    for arm in largest.index:
        assert any(len(y) > 2 and np.allclose(y, largest.loc[arm]) for y in curves), arm
    # A change of loss of some hundredths is no mountain.
    assert np.ptp(loss.get_ylim()) >= 0.5
    # Equal curves lie on each other; each still has a marker where no other one has.
    places = [line.get_markevery() for line in loss.lines if np.size(line.get_xdata())]
    assert len({*places}) == len(places) > 4


def test_a_loss_over_steps_is_of_one_batch() -> None:
    work = make_study()["workload"] | {"scaling": "weak", "global_batch": 4}
    table = make_table(repeats=1, workload=work, cells=[a_cell("dps")], compares=["global_batch"])
    losses = pick(table, "step", "loss")
    # Of four times the batch, and of another training.
    table = altered(table, {"level": "step", "metric": "loss", "nodes": 4}, value=1.0)
    lines = draw("loss_step", table).axes[0].lines
    [curve] = [np.asarray(line.get_ydata()) for line in lines if np.size(line.get_xdata())]
    assert losses["nodes"].nunique() == 3 and set(curve) == {1.0}


def test_tokens_of_a_step_are_those_of_the_last_phase() -> None:
    work = make_study()["workload"]
    ramp = {**work, "phases": [{"steps": 2, "global_batch": 4, "context": 128}]}
    table = make_table(repeats=1, workload=ramp, cells=[a_cell("dps")])
    assert "2,048 tokens per step of the last phase;" in headline.setting(Results(table))
    assert "2,048 tokens per step;" in headline.setting(Results(make_table(repeats=1)))


def test_loss_against_time_is_that_of_the_runs_to_the_end_over_each_step_time(tmp_path) -> None:
    begin = {"steps": 8, "whole": ["single/n1", "dps/n2"]}
    unseen = {"steps": 5, "unigram_entropy": 6.0}

    def edit(runs: Path) -> None:
        for run in ("single/n1/r0", "dps/n2/r0"):
            edit_record(runs / run, lambda one: one["ranks"][0].update(unseen_text=unseen))

    table = edited_table(tmp_path, edit, repeats=2, beginnings=begin)
    figure = draw("loss_step", table)
    _, over_time, _ = figure.axes
    seconds = [np.asarray(line.get_xdata(), dtype=float) for line in over_time.lines]
    ends = [float(each[-1]) for each in seconds if each.size]
    # Over one link; the one in mixed precision has other losses.
    place = Results(table).last_place
    cells = place.loc[place["precision"] == "fp32", "cell"]
    each = [30 * row_of(table, "step_seconds", cell, 4)["value"] for cell in cells]
    assert sorted(ends) == pytest.approx(sorted(each))
    said = words(figure)
    assert "50 steps of the runs to the end" in said and "at step 30. " in said
    assert said.count("than the unigram entropy of that text (6.000)") == 2
    assert "Loss of the last 5 steps, on text that no step before had: Single" in said


def test_a_cell_keeps_its_look_and_no_two_share_one() -> None:
    cells = [a_cell(f"c{i}") for i in range(12)]
    one = {**make_study()["cluster"], "nodes": [1]}
    looks = theme.semantics(Results(make_table(repeats=1, cells=cells, cluster=one)))
    assert len({(looks["palette"][arm], looks["markers"][arm]) for arm in looks["dashes"]}) == 12


def test_a_figure_of_unequal_work_is_refused(table, tmp_path, capsys) -> None:
    tidy.write(altered(table, {"cell": "sps"}, global_batch=32), tmp_path / "m.parquet")
    args = ["figure", "speedup", "--metrics", str(tmp_path / "m.parquet"), "--out", str(tmp_path)]
    assert main(args) == 2
    assert "figure speedup refuses: global_batch is 16" in capsys.readouterr().err
    assert not (tmp_path / "speedup.pdf").exists()


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


LINKS = ["200 Mbit/s", "1 Gbit/s"]


@pytest.fixture(scope="module")
def linked() -> pd.DataFrame:
    return make_table(repeats=2, cluster=EMULATED)


def titles(figure: Figure) -> list[str]:
    return [axes.get_title() for axes in figure.axes if axes.get_visible() and axes.get_title()]


@pytest.mark.parametrize("name", ["throughput", "speedup"])
def test_each_link_has_a_panel_with_lines_that_begin_at_one_point(name, linked) -> None:
    figure = draw(name, linked)
    assert titles(figure) == [f"links of {link}" for link in LINKS]
    # The caps of intervals have no line between them.
    arms = [[line for line in axes.lines
             if np.size(line.get_xdata()) == 3 and line.get_linestyle() != "None"]
            for axes in figure.axes]  # fmt: skip
    first, second = ([np.asarray(line.get_xydata()).tolist() for line in own] for own in arms)
    assert len(first) == len(second) == 4
    for one, other in zip(first, second, strict=True):
        assert one[0] == other[0] and one[1:] != other[1:]


def parts(figure: Figure, panel: int, place: int) -> list[Rectangle]:
    """The pieces of one bar, from left to right."""
    found = [p for p in figure.axes[panel].patches if isinstance(p, Rectangle)]
    return [p for p in found if abs(p.get_y() + p.get_height() / 2 - place) < 0.1]


def value(table: pd.DataFrame, metric: str, cell: str, nodes: int) -> float:
    return float(row_of(table, metric, cell, nodes)["value"])


def test_a_bar_is_the_phases_end_to_end_as_shares_of_the_step(table, drawn) -> None:
    figure = drawn("time_split")
    # The cells that ran, in the order of the study: single, sps, dps, horovod, dps-amp.
    bar = parts(figure, panel=2, place=2)
    spent = [value(table, f"phase_mean_seconds:{name}", "dps", 4) for name in IN_STEP]
    expected = [100 * seconds / sum(spent) for seconds in spent]
    assert [p.get_width() for p in bar] == pytest.approx(expected)
    assert [p.get_x() for p in bar] == pytest.approx([0, *np.cumsum(expected)[:-1]])
    share = value(table, "phase_share:communication", "dps", 4)
    beside = [text.get_text().strip() for text in figure.axes[2].texts]
    assert f"{100 * share:.0f} % of {significant(1000 * sum(spent), 2)} ms" in beside
    assert figure.axes[0].texts[0].get_text().startswith("0 % of ")
    assert parts(figure, panel=1, place=0) == [], "the single device ran on one node alone"


BRACKETS = re.compile(r"\[-?[\d.,]+, -?[\d.,]+\]")


@pytest.fixture(scope="module")
def few() -> pd.DataFrame:
    """One repeat less than an interval needs."""
    return make_table(repeats=5, cluster=EMULATED, profile={"steps": 8})


def test_no_table_has_an_interval_or_a_verdict(few: pd.DataFrame) -> None:
    over_runs = few[few["level"].isin(["cell", "comparison"])]
    assert over_runs.dropna(subset=["low"]).empty
    verdicts = few.loc[few["metric"] == "speed_verdict", "text"]
    assert not verdicts.isin([FASTER, SLOWER]).any() and len(verdicts)
    for name in tables.catalogue.captions:
        text = made(name, few)[1].to_csv()
        assert not BRACKETS.search(text) and not re.search(r"\d [<>](,|$)", text), text


@pytest.mark.parametrize("name", figures.catalogue.captions)
def test_no_figure_draws_one(name: str, few: pd.DataFrame) -> None:
    figure = draw(name, few)
    written = words(figure)
    assert not BRACKETS.search(written) and "95 %" not in written, written
    for axes in figure.axes:
        for bar in (one for one in axes.containers if isinstance(one, ErrorbarContainer)):
            lines = [line for line in bar.lines[2] if isinstance(line, LineCollection)]
            # What has no ends is left out of a segment.
            assert not any(len(part) > 1 for line in lines for part in line.get_segments())


@pytest.fixture(scope="module")
def conditioned() -> pd.DataFrame:
    return make_table(**CONDITIONS)


@pytest.fixture(scope="module")
def what_if(conditioned: pd.DataFrame) -> Figure:
    return draw("what_if", conditioned)


def points(axes: Axes) -> list[tuple[float, float, str, str]]:
    """Ratio, height, colour and marker of each point."""
    return [
        (float(np.asarray(line.get_xdata())[0]), float(np.asarray(line.get_ydata())[0]),
         to_hex(line.get_color()), str(line.get_marker()))
        for line in axes.lines
        if len(np.asarray(line.get_xdata())) == 1
    ]  # fmt: skip


def test_each_ratio_is_a_point_of_its_cell_with_its_interval(conditioned, what_if) -> None:
    found, looks = Results(conditioned).against_plain, theme.semantics(Results(conditioned))
    drawn = points(what_if.axes[0])
    # Each in the band of its condition.
    assert [round(point[1]) for point in drawn] == [n for n in range(4) for _ in range(3)]
    assert [point[0] for point in drawn] == pytest.approx(list(found["ratio"]))
    colours, markers = looks["palette"], looks["markers"]
    styles = [(colours[arm].lower(), markers[arm]) for arm in found["arm"]]
    assert [point[2:] for point in drawn] == styles
    ends = [list(np.asarray(line.get_xdata())) for line in what_if.axes[0].lines
            if line.get_marker() == "|"]  # fmt: skip
    assert ends == found[["low", "high"]].to_numpy().tolist()


def test_without_a_pair_that_finished_it_says_so() -> None:
    fell = make_table(**CONDITIONS | {"repeats": 1}, fell_back=lambda spec: True)
    assert "no cell finished both with and without a condition" in words(draw("what_if", fell))


BUCKET = {"bucket_cap_mb": 1}


def test_every_pair_is_a_point_in_the_band_of_its_change() -> None:
    cells = [
        a_cell("plain", nodes=[4]),
        a_cell("bucket", nodes=[4], options=BUCKET),
        a_cell("mixed", nodes=[4], precision="bf16"),
        a_cell("both", nodes=[4], options=BUCKET, precision="bf16"),
    ]
    figure = draw("switches", make_table(repeats=6, cells=cells))
    (axes,) = [one for one in figure.axes if one.lines]
    marks = [line for line in axes.lines if line.get_marker() == "o"]
    heights = [float(np.asarray(line.get_ydata())[0]) for line in marks]
    assert sorted(map(round, heights)) == [0, 0, 1, 1]
    assert len({line.get_color() for line in marks}) == 2
    said = words(figure)
    assert all(text in said for text in ("alone", "as the last", "precision fp32 to bf16"))
