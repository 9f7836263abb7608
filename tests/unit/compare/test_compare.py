"""Two result sets, or two runs, side by side: losses, times, exit status, and perfect reruns."""

import json
import math
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from pipeline.__main__ import main
from pipeline.compare.sets import DIFFERENT, SAME, UNDECIDED, cell_times, pooled, verdict
from pipeline.metrics.statistics import Interval
from pipeline.records import Step
from pipeline.text import NONE
from tests.fake_records import edit_record, edit_steps, make_study, write_records

NAMES = ("single", "dps", "horovod", "horovod-apex")
CELLS: dict[str, Any] = {"repeats": 2, "profile": {"steps": 4},
         "cells": [cell for cell in make_study()["cells"] if cell["name"] in NAMES]}  # fmt: skip
SINGLE = "runs/single/n1/r0"


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    study = make_study(**CELLS)
    study["cluster"] = study["cluster"] | {"nodes": [1, 2]}
    folder = tmp_path_factory.mktemp("made")
    write_records(folder / "runs", study)
    return folder


@pytest.fixture
def pair(made, tmp_path) -> tuple[Path, Path]:
    for name in ("a", "b"):
        shutil.copytree(made, tmp_path / name)
    return tmp_path / "a", tmp_path / "b"


def change_loss(step: Step) -> Step:
    # every rank records the global loss
    return replace(step, loss=(step.loss or 0) * (1 + 1e-6)) if step.step >= 7 else step


def last_bit(step: Step) -> Step:
    other = math.nextafter(step.loss or 0, 9)
    return replace(step, loss=other) if (step.step, step.rank) == (3, 1) else step


def call(pair, *more: str) -> int:
    return main(["compare", *map(str, pair), *more])


def test_equal_sets_are_equal_to_the_bit(pair, capsys) -> None:
    assert call(pair, "--times", "interval") == 0
    shown = capsys.readouterr().out
    assert "dps, 2 nodes: bit-equal; 2 repeats" in shown
    assert shown.rstrip().endswith(
        "same in losses and gradient norms; times differ in 0 of 5 cells (same within 5 % in 5, "
        "undecided in 0)"
    )


def test_the_first_differing_step_is_named_with_both_values(pair, tmp_path, capsys) -> None:
    edit_steps(pair[1] / "runs/dps/n2/r1", change_loss)
    assert call(pair, "--losses", "1e-5") == 0
    assert call(pair, "--losses", "1e-7", "--out", str(tmp_path / "out")) == 1
    shown = capsys.readouterr().out
    said = r"dps, 2 nodes: loss differs from step 7 of r1: (\S+) and (\S+) "
    [(one, other)] = re.findall(said, shown)
    assert float(other) == pytest.approx(float(one) * (1 + 1e-6), rel=1e-12)
    assert "(1.0e-6)" in shown and "gradient norm differs" not in shown and "DIFFERENT" in shown
    [written] = (tmp_path / "out").iterdir()
    assert written.name == "compare.md"
    assert all(word in written.read_text() for word in ("**different**", "step 7 of r1"))


def test_a_loss_that_is_not_finite_on_one_side_differs(pair) -> None:
    edit_steps(pair[1] / SINGLE, lambda step: replace(step, loss=None))
    assert call(pair, "--losses", "0.9") == 1
    edit_steps(pair[0] / SINGLE, lambda step: replace(step, loss=None))
    assert call(pair) == 0


def test_times_count_only_where_asked(pair, capsys) -> None:
    for repeat in (0, 1):
        folder = pair[1] / f"runs/horovod/n2/r{repeat}"
        edit_steps(folder, lambda step: replace(step, seconds=step.seconds * 3))
    assert call(pair) == 0
    shown = capsys.readouterr().out
    assert "times differ in 1 of 5 cells (same within 5 % in 4, undecided in 0)" in shown
    assert re.search(r"horovod, 2 nodes: .*; step time B over A 3\.00 \[.*, different", shown)
    assert call(pair, "--times", "interval") == 1


def new_torch(other: Path) -> None:
    edit_record(other / "runs/dps/n1/r0", lambda run: run["versions"].update(torch="9.9"))


def profiled(other: Path) -> None:
    for cell in ("dps", "horovod"):
        edit_steps(other / f"runs/{cell}/n2/p0", change_loss)


@pytest.mark.parametrize(
    ("change", "status", "text"),
    [
        (lambda b: edit_steps(b / SINGLE, lambda s: replace(s, grad_norm=2 * (s.grad_norm or 0))),
         1, "gradient norm differs"),
        (lambda b: edit_steps(b / "runs/dps/n2/r1", last_bit), 1, "step 3 of r1 on rank 1: "),
        (new_torch, 0, "versions.torch: 2.13.0 and 2.13.0, 9.9"),
        (lambda b: shutil.rmtree(b / "runs/dps"), 1, "dps, 1 node: only in A"),
        (lambda b: shutil.rmtree(b / "runs/dps/n1/r1"), 1, "norms; NOT THE SAME RUNS in both sets"),
        (lambda b: shutil.rmtree(b), 2, "b does not exist; give the folder"),
        (lambda b: shutil.rmtree(b / "runs"), 2, "b holds no record; give the folder of a study"),
        (profiled, 0, "DIFFER"),
    ],
)  # fmt: skip
def test_what_is_said_of_another_set(pair, capsys, change, status, text) -> None:
    change(pair[1])
    assert call(pair) == status
    shown = capsys.readouterr()
    # Profiled runs are no repeats.
    assert (text in (shown.err if status == 2 else shown.out)) == (change is not profiled)


def test_runs_that_the_study_no_longer_has_are_named_and_left_out(pair, capsys) -> None:
    study = make_study(**CELLS) | {"cells": CELLS["cells"][:-1]}
    study["cluster"] = study["cluster"] | {"nodes": [1, 2]}
    for folder in pair:
        (folder / "study.json").write_text(json.dumps(study))
    shutil.rmtree(pair[1] / "runs/horovod-apex")
    assert call(pair) == 0
    shown = capsys.readouterr().out
    assert "A: 6 runs left out, which study.json no longer has: horovod-apex/n1/p0, " in shown
    assert "horovod-apex, " not in shown and "B: 6" not in shown


def test_nothing_in_common_is_refused_and_no_success(pair, capsys) -> None:
    shutil.rmtree(pair[0] / "runs/dps")
    for path in (pair[1] / "runs").iterdir():
        if path.name != "dps":
            shutil.rmtree(path)
    assert call(pair) == 2
    assert "no run finished in both" in capsys.readouterr().err


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Profiled runs on one and two ranks, of which the latter's two hold parts of the gradients."""
    study = make_study(repeats=1, profile={"steps": 4})
    study["cluster"] = study["cluster"] | {"nodes": [1, 2]}
    write_records(tmp_path, study)
    edit_steps(tmp_path / "single/n1/p0", lambda step: replace(step, loss=5.0, grad_norm=2.0))
    edit_steps(tmp_path / "single/n1/p0", lambda s: replace(s, squares={"h.0": 0.36, "wte": 0.64}))
    edit_steps(tmp_path / "dps/n2/p0", on_two_ranks)
    return tmp_path


def on_two_ranks(step: Step) -> Step:
    """From step 3 on the first block's gradient is smaller, and so is the norm of all."""
    late = step.step >= 3
    shares = [{"h.0": 0.2, "wte": 0.64}, {"h.0": 0.04 if late else 0.16}]
    norm = 2.0 * (0.88 if late else 1.0) ** 0.5
    return replace(step, loss=5.0, grad_norm=norm, squares=shares[step.rank])


def call_on(runs: Path, one: str, other: str, *more: str) -> int:
    return main(["compare", str(runs / one), str(runs / other), *more])


def test_the_first_step_and_the_block_are_named(runs, capsys) -> None:
    assert call_on(runs, "single/n1/p0", "dps/n2/p0", "--losses", "1e-6") == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].endswith("dps/n2/p0, strategy ddp, 2 ranks")
    rows = {row[0]: row[1:] for row in (re.split("  +", line) for line in lines[3:])}
    parted = {"gradient norm", "h.0"}
    assert {*rows} == {"series", "loss", "wte", *parted}
    assert {name for name, row in rows.items() if row[0] == "3"} == parted
    assert rows["h.0"] == ["3", "1.20000", "0.979796", "1.8e-1", "1.8e-1", "3"]
    assert rows["wte"][:4] == [NONE] * 4
    assert call_on(runs, "single/n1/p0", "dps/n2/p0", "--losses", "0.2") == 0


@pytest.mark.parametrize(
    ("other", "more", "reason"),
    [
        ("dps/n2/r0", (), "had another optimiser, so their steps are not the same"),
        ("horovod/n2/p0", (), "n2/p0 is failed; give two runs that finished"),
        ("dps/n2/p0", ("--times", "interval"), "--times would do nothing with two runs"),
    ],
)
def test_what_cannot_be_held_against_each_other_is_refused(
    runs, capsys, other, more, reason
) -> None:
    failed = {"status": "failed", "reason": "lost"}
    edit_record(runs / "horovod/n2/p0", lambda run: run.update(failed))
    assert call_on(runs, "single/n1/p0", other, *more) == 2
    assert reason in capsys.readouterr().err


@pytest.mark.parametrize(
    ("one", "other", "reason"),
    [
        ("single/n1/p0", "single/n1/p0", "A and B are both "),
        ("..", "single/n1/p0", "single/n1/p0 is one run and "),
        ("single/n1/p0", "single", "single/n1/p0 is one run and "),
    ],
)
def test_two_of_a_kind_are_asked_for(runs, capsys, one, other, reason) -> None:
    assert call_on(runs, one, other) == 2
    assert reason in capsys.readouterr().err


class Timed(NamedTuple):
    """All that is asked of a run here."""

    timed_seconds: Any


def timed(*medians: float) -> Any:
    return [Timed(np.array([seconds])) for seconds in medians]


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.96, 1.04, SAME),
        (1.06, 1.2, DIFFERENT),
        (0.8, 0.94, DIFFERENT),
        (1.01, 1.04, SAME),
        (1.01, 1.2, UNDECIDED),
    ],
)
def test_an_interval_is_held_against_the_margin(low: float, high: float, expected: str) -> None:
    assert verdict(Interval(1.0, low, high, 6, "")) == expected


def test_one_run_on_a_side_decides_nothing() -> None:
    [times] = cell_times({"a": (timed(1, 2), timed(9))}).values()
    assert times.verdict == UNDECIDED and times.ratio is None
    assert (times.one, times.other) == pytest.approx((1.5, 9))
    assert pooled([(timed(1, 2), timed(9))]) is None
    assert cell_times({"a": (timed(1), timed())}) == {}


def test_the_same_measurements_are_the_same_however_much_they_vary() -> None:
    [times] = cell_times({"a": (timed(1, 2, 4), timed(1, 2, 4))}).values()
    assert times.verdict == SAME and times.ratio is not None and times.ratio.high == 1
    whole = pooled([(timed(1, 2, 4), timed(1, 2, 4)), (timed(3), timed(3)), (timed(), timed())])
    assert whole is not None and (whole.low, whole.high, whole.n) == (1, 1, 2)


def test_more_cells_ask_for_wider_intervals_and_pooling_narrows() -> None:
    cell = (timed(1.0, 1.1, 1.2, 0.9), timed(1.3, 1.0, 1.1, 1.0))
    widths = []
    for count in (1, 40):
        pairs = dict.fromkeys(range(count), cell)
        ratio = cell_times(pairs)[0].ratio
        assert ratio is not None
        widths.append(ratio.high / ratio.low)
    whole = pooled(pairs.values())
    assert widths[1] > 1.5 * widths[0]
    assert whole is not None and whole.high / whole.low < widths[0]


def reruns(generator: np.random.Generator, count: int) -> Iterator[dict[int, Any]]:
    """Perfect reruns of a study of 42 cells with 6 repeats; runs differ by 10 %, some by 60 %."""
    for _ in range(count):
        noise = 0.1 * generator.standard_normal((42, 2, 6))
        noise += 0.5 * (generator.random((42, 2, 6)) < 0.1)
        yield {
            cell: tuple(timed(*np.exp(side)) for side in pair) for cell, pair in enumerate(noise)
        }


def test_a_perfect_rerun_is_seldom_called_different() -> None:
    studies = list(reruns(np.random.default_rng(1), 40))
    called = [
        any(times.verdict == DIFFERENT for times in cell_times(pairs).values()) for pairs in studies
    ]
    assert sum(called) <= 2
