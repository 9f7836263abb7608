"""Published points: where they may stand, and that they look like nothing that was measured."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from pipeline.__main__ import main
from pipeline.claims.load import FOLDER, load_claims
from pipeline.claims.types import Claim, Verdict
from pipeline.claims.write import to_dict, write_verdicts
from pipeline.figures import theme
from pipeline.figures.throughput import published_step_seconds
from pipeline.metrics import table as tidy
from pipeline.metrics.statistics import Interval
from tests.claims_worlds import CELLS, make_world
from tests.fake_records import make_table
from tests.unit.figures.drawn import draw

CLAIMS = {claim.id: claim for claim in load_claims(FOLDER / "bai2022/claims.yaml")}
MODEL = {"family": "gpt2", "num_layers": 12, "width": 768, "num_heads": 12, "context": 512,
         "vocab_size": 26651}  # fmt: skip


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return make_table(repeats=2)


def gpu_table(**changes: Any) -> pd.DataFrame:
    """Three cells at the batch, model and number of GPUs of the published step times."""
    cells = [{"label": c["name"], **c, "nodes": [1]} for c in CELLS[2:5]]
    return make_world(cells=cells, model=MODEL, repeats=2, compares=[], **changes).table


def verdict(claim: Claim, kind: str, effect: tuple[float, float, float] | None) -> dict[str, Any]:
    """A verdict as the file holds it."""
    found = None if effect is None else Interval(effect[1], effect[0], effect[2], 6, "made up")
    runs = () if effect is None else ("fake/a/n1/r0",)
    return to_dict(Verdict(claim, kind, "why", "made on paper", found, (), runs))


def points(figure: Figure, marker: str) -> list[tuple[float, float]]:
    """Coordinates of all points drawn with this marker."""
    lines = [line for axes in figure.axes for line in axes.lines]
    chosen = [line for line in lines if line.get_marker() == marker]
    return [(_first(line.get_xdata()), _first(line.get_ydata())) for line in chosen]


def _first(values: Any) -> float:
    return float(np.asarray(values, dtype=float)[0])


def legend(figure: Figure) -> dict[str, Line2D]:
    [box] = figure.legends
    return {line.get_label(): line for line in box.get_lines()}  # type: ignore[misc]


def test_what_was_published_has_a_marker_that_no_cell_has() -> None:
    assert theme.PUBLISHED["marker"] not in theme._MARKERS


def test_measured_and_published_stand_in_one_line_without_hiding_each_other(table) -> None:
    one = verdict(CLAIMS["amp-speeds-up-dps"], "not reproduced", (1.1, 1.2, 1.3))
    figure = draw("published", table, [one])
    [(measured, above)] = points(figure, "o")
    [(stated, below)] = points(figure, "*")
    assert (measured, stated) == (1.2, 2.0) and above < below
    entries = legend(figure)
    assert entries["published"].get_marker() == "*"
    assert entries["measured here, with its interval"].get_marker() == "o"


def test_every_line_has_its_verdict_in_word_and_colour(table: pd.DataFrame) -> None:
    names = (
        "amp-speeds-up-dps",
        "sps-slower-than-one",
        "dps-fastest-one-node",
        "amp-halves-memory",
    )
    kinds = ("reproduced", "not reproduced", "not testable here", "not testable here")
    values = ((1.9, 2.0, 2.1), (1.2, 1.3, 1.4), (0.9, 1.0, 1.1), None)
    shown = [verdict(CLAIMS[n], k, v) for n, k, v in zip(names, kinds, values, strict=True)]
    figure = draw("published", table, shown)
    said = [text.get_text() for text in figure.axes[0].texts]
    assert said == ["reproduced", "not reproduced", "undecided"]
    colours = [to_rgba(str(text.get_color())) for text in figure.axes[0].texts]
    assert len(set(colours)) == 3
    assert "4 claims: 1 reproduced, 1 not reproduced, 1 undecided, 1 not testable" in " ".join(
        figure.texts[0].get_text().split()
    )
    ticks = [" ".join(tick.get_text().split()) for tick in figure.axes[0].get_yticklabels()]
    assert all(CLAIMS[n].sentence.startswith(t[:-4]) for n, t in zip(names, ticks, strict=False))
    assert len(points(figure, "o")) == 3


def test_what_is_no_ratio_or_has_no_point_is_left_out(table: pd.DataFrame) -> None:
    names = ("sps-utilisation", "amp-fits-batch-4", "sublinear-nodes")
    shown = [verdict(CLAIMS[name], "not testable here", None) for name in names]
    figure = draw("published", table, shown)
    assert "no claim with a ratio was tested" in [text.get_text() for text in figure.axes[0].texts]


def test_the_figure_is_the_same_bytes_twice_and_needs_verdicts(table, tmp_path, capsys) -> None:
    tidy.write(table, tmp_path / "m.parquet")
    one = Verdict(CLAIMS["amp-speeds-up-dps"], "reproduced", "why", "made on paper",
                  Interval(2.0, 1.9, 2.1, 6, "made up"), (), ("fake/a/n1/r0",))  # fmt: skip
    write_verdicts("fake", [one], tmp_path / "v.json")
    args = ["figure", "published", "--metrics", str(tmp_path / "m.parquet")]
    for run in ("a", "b"):
        more = ["--verdicts", str(tmp_path / "v.json"), "--out", str(tmp_path / run)]
        assert main([*args, *more]) == 0
    for kind in theme.FORMATS:
        first, second = (tmp_path / run / f"published.{kind}" for run in ("a", "b"))
        assert first.read_bytes() == second.read_bytes()
    assert main([*args, "--out", str(tmp_path / "c")]) == 2
    assert "published is about claims; give it --verdicts" in capsys.readouterr().err


def test_step_times_of_the_same_setting_are_overlaid() -> None:
    table = gpu_table()
    found = published_step_seconds(table)
    assert {key: number.value for key, number in found.items()} == {
        ("ring", 1): 0.295,
        ("ddp-mixed", 1): 0.24,
    }
    figure = draw("throughput", table)
    assert "published, on NVIDIA V100" in legend(figure)
    rates = sorted(rate for _, rate in points(figure, "*"))
    assert rates == [pytest.approx(16 * 512 / 0.295), pytest.approx(16 * 512 / 0.24)]


@pytest.mark.parametrize(
    "changes",
    [
        {"device": "cpu"},
        {"global_batch": 32},
        {"model": "gpt2 layers=2 width=64 heads=2 context=64 vocabulary=300"},
        {"world_size": 2},
        {"nodes": 2},
        {"precision": "amp_o1"},
    ],
)
def test_another_setting_has_no_published_point(changes: dict[str, Any]) -> None:
    assert not published_step_seconds(gpu_table().assign(**changes))


def test_a_study_of_unequal_arms_has_no_published_point() -> None:
    table = gpu_table()
    about = table[table["level"] == "study"].iloc[[0]].assign(metric="compares", text="schedule")
    assert not published_step_seconds(pd.concat([table, about], ignore_index=True))


def test_a_study_on_a_cpu_shows_no_published_time(table: pd.DataFrame) -> None:
    figure = draw("throughput", table)
    assert not points(figure, "*")
    assert not any("published" in label for label in legend(figure))
