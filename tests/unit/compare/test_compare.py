"""Two result sets side by side: what is found, what is written, and the exit status."""

import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.__main__ import main
from pipeline.compare.sets import ResultSet, compare
from pipeline.records import Step
from tests.fake_records import edit_record, edit_steps, make_study, write_records

CELLS = {"repeats": 2, "profile": {"steps": 4}}


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


def slower(step: Step) -> Step:
    return replace(step, seconds=step.seconds * 3)


def call(pair, *more: str) -> int:
    return main(["compare", *map(str, pair), *more])


def test_equal_sets_are_equal_to_the_bit(pair, capsys) -> None:
    assert call(pair, "--times", "interval") == 0
    shown = capsys.readouterr().out
    assert "dps, 2 nodes: bit-equal; 2 repeats" in shown
    assert shown.rstrip().endswith(
        "same in losses and gradient norms; times differ in 0 of 9 cells (same within 5 % in 9, "
        "undecided in 0)"
    )


def test_the_first_differing_step_is_named_with_both_values(pair, capsys) -> None:
    edit_steps(pair[1] / "runs/dps/n2/r1", change_loss)
    assert call(pair) == 1
    shown = capsys.readouterr().out
    assert "dps, 2 nodes: loss differs from step 7 of r1: " in shown and "(1.0e-6)" in shown
    assert "gradient norm differs" not in shown and "DIFFERENT" in shown
    [found] = [m for m in read(pair).matches if m.place == ("dps", 2)]
    [first] = found.differences
    assert (first.step, first.repeat) == (7, 1)
    assert first.other == pytest.approx(first.one * (1 + 1e-6), rel=1e-12)


def read(pair, allowed: float = 0.0):
    return compare(ResultSet.read(pair[0]), ResultSet.read(pair[1]), allowed)


def test_a_small_difference_may_be_allowed(pair) -> None:
    edit_steps(pair[1] / "runs/dps/n2/r1", change_loss)
    assert call(pair, "--losses", "1e-5") == 0
    assert call(pair, "--losses", "1e-7") == 1


def test_a_gradient_norm_alone_counts(pair) -> None:
    edit_steps(
        pair[1] / "runs/single/n1/r0", lambda s: replace(s, grad_norm=2 * (s.grad_norm or 0))
    )
    assert call(pair) == 1
    assert call(pair, "--losses", "0.5") == 1


def test_a_loss_that_is_not_finite_on_one_side_differs(pair) -> None:
    edit_steps(pair[1] / "runs/single/n1/r0", lambda step: replace(step, loss=None))
    assert call(pair, "--losses", "0.9") == 1
    edit_steps(pair[0] / "runs/single/n1/r0", lambda step: replace(step, loss=None))
    assert call(pair) == 0


def test_times_count_only_where_asked(pair, capsys) -> None:
    for repeat in (0, 1):
        edit_steps(pair[1] / f"runs/horovod/n2/r{repeat}", slower)
    assert call(pair) == 0
    shown = capsys.readouterr().out
    assert "times differ in 1 of 9 cells (same within 5 % in 8, undecided in 0)" in shown
    assert call(pair, "--times", "interval") == 1
    times = read(pair).times["horovod", 2]
    assert times.ratio is not None and times.ratio.value == pytest.approx(3)
    assert call(pair, "--times", "interval", "--margin", "0.9") == 1
    assert call(pair, "--margin", "1") == 2


def test_a_rank_that_is_not_the_root_counts(pair, capsys) -> None:
    def change(step):
        last_bit = math.nextafter(step.loss, 9)
        return replace(step, loss=last_bit) if (step.step, step.rank) == (3, 1) else step

    edit_steps(pair[1] / "runs/dps/n2/r1", change)
    assert call(pair) == 1
    assert "loss differs from step 3 of r1 on rank 1: " in capsys.readouterr().out


def test_sets_whose_runs_were_made_differently_say_so(pair, capsys) -> None:
    edit_record(pair[1] / "runs/dps/n1/r0", lambda run: run["versions"].update(torch="9.9"))
    assert call(pair) == 0
    assert "mixed: B: torch 2.13.0 and 9.9" in capsys.readouterr().out


def test_a_missing_cell_differs(pair, capsys) -> None:
    shutil.rmtree(pair[1] / "runs" / "dps")
    assert call(pair) == 1
    assert "dps, 1 node: only in A" in capsys.readouterr().out


def test_a_missing_repeat_and_another_status_differ(pair, capsys) -> None:
    shutil.rmtree(pair[1] / "runs" / "dps" / "n1" / "r1")
    assert call(pair) == 1
    said = capsys.readouterr().out
    assert "r1 is ok and absent" in said
    assert "same in losses and gradient norms; NOT THE SAME RUNS in both sets" in said


def test_a_record_in_the_folder_of_another_run_is_refused(pair, capsys) -> None:
    shutil.rmtree(pair[1] / "runs/dps/n1/r1")
    (pair[1] / "runs/dps/n1/r0").rename(pair[1] / "runs/dps/n1/r1")
    assert call(pair) == 2
    assert "r1 holds the record of" in capsys.readouterr().err


def test_versions_and_specs_are_listed_and_do_not_decide(pair, made, tmp_path, capsys) -> None:
    edit_record(pair[1] / "runs/dps/n1/r0", lambda run: run["versions"].update(torch="9.9"))
    study = make_study(**CELLS, timeout_seconds=299)
    study["cluster"] = study["cluster"] | {"nodes": [1, 2]}
    other = tmp_path / "c"
    write_records(other / "runs", study)
    assert call(pair) == 0
    assert "versions.torch: 2.13.0 and 2.13.0, 9.9" in capsys.readouterr().out
    assert call((pair[0], other)) == 0
    assert "spec timeout_seconds: 300 and 299" in capsys.readouterr().out


def test_a_table_is_written(pair, tmp_path) -> None:
    edit_steps(pair[1] / "runs/dps/n2/r1", change_loss)
    out = tmp_path / "out"
    assert call(pair, "--out", str(out)) == 1
    assert [path.name for path in out.iterdir()] == ["compare.md"]
    text = (out / "compare.md").read_text()
    assert "**different**" in text and "step 7 of r1" in text


@pytest.mark.parametrize("losses", ["exact", "-1", "nan", "1e400"])
def test_a_strictness_that_is_none_is_refused(pair, losses, capsys) -> None:
    assert call(pair, f"--losses={losses}") == 2
    assert repr(losses) in capsys.readouterr().err


def test_a_folder_without_records_is_refused(pair, tmp_path, capsys) -> None:
    assert call((pair[0], tmp_path / "none")) == 2
    shown = capsys.readouterr().err
    assert "none does not exist; give the folder" in shown and shown.count("\n") == 1


def test_a_broken_record_is_refused(pair, capsys) -> None:
    (pair[1] / "runs/dps/n1/r0/run.json").write_text("{")
    assert call(pair) == 2
    assert "not JSON" in capsys.readouterr().err


def test_nothing_in_common_is_refused_and_no_success(pair, tmp_path, capsys) -> None:
    shutil.rmtree(pair[0] / "runs/dps")
    other = tmp_path / "c"
    shutil.copytree(pair[1] / "runs/dps", other / "runs/dps")
    assert call((pair[0], other)) == 2
    assert "no run finished in both" in capsys.readouterr().err


def test_profiled_runs_are_no_repeats(pair) -> None:
    edit_steps(pair[1] / "runs/dps/n2/p0", change_loss)
    edit_steps(pair[1] / "runs/horovod/n2/p0", change_loss)
    assert call(pair) == 0
    assert {r for runs in ResultSet.read(pair[0]).runs.values() for r in runs} == {0, 1}
