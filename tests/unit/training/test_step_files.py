"""The rows of steps that ranks keep: read back to the bit, cut back, and never read half."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import LaunchError
from pipeline.records import Step
from pipeline.training import step_files
from pipeline.training.step_files import ROW, StepFile, path_of, read_steps, whole_steps

PHASES = {"forward": 0.1, "backward": 0.2, "rest": 1 / 3, "data": 0.0}


def made(step: int, rank: int = 0, **given: Any) -> Step:
    base = Step(step, rank, 0.1 + step / 3, 2**33, 1 / 7, 2.0 / 3, 3e-4, True, cpu_seconds=1 / 9)
    return replace(base, **given)


def leave(folder: Path, *counts: int) -> None:
    """That many steps of each rank."""
    for rank, count in enumerate(counts):
        with StepFile(folder, rank) as steps:
            for step in range(count):
                steps.write(made(step, rank))


def test_steps_are_read_back_to_the_bit(tmp_path: Path) -> None:
    written = [made(0, timed=False), made(1, loss=None, grad_norm=None), made(2)]
    with StepFile(tmp_path, 0) as steps:
        for step in written:
            steps.write(step)
    with StepFile(tmp_path, 1) as steps:
        steps.write(made(0, 1))
    assert read_steps(tmp_path) == [written[0], made(0, 1), *written[1:]]
    assert path_of(tmp_path, 0).stat().st_size == 3 * ROW.size


def test_a_profiled_run_has_its_phases_and_passes(tmp_path: Path) -> None:
    passes = [["forward", 0, 0, 0.25], ["backward", 0, 0, 0.5]]
    profiled: dict[str, Any] = {"phases": PHASES, "cpu_phases": PHASES, "passes": passes}
    written = [made(0, **profiled), made(1, **profiled, loss=None)]
    with StepFile(tmp_path, 0) as steps:
        for step in written:
            steps.write(step)
    assert read_steps(tmp_path) == written
    profile = tmp_path / "rank0.profile.jsonl"
    profile.write_text(profile.read_text()[:-5])
    assert read_steps(tmp_path) == written[:1], "a line that a kill cut off"
    profile.write_text("{}]\n" * 2)
    assert read_steps(tmp_path) == []


@pytest.mark.parametrize(
    ("damage", "left"),
    [
        (lambda rows: rows[:-1], 3),
        (lambda rows: rows + rows[:9], 4),
        (lambda rows: rows[: 2 * ROW.size] + bytes(2 * ROW.size), 2),
        (lambda rows: rows[: ROW.size] + rows[2 * ROW.size :], 1),
        (lambda rows: rows[:90] + bytes([rows[90] ^ 4]) + rows[91:], 1),
        (lambda rows: bytes(len(rows)), 0),
        (lambda rows: b"", 0),
    ],
    ids=["cut off", "in the making", "zeros", "a row is missing", "a bit", "all zeros", "empty"],
)
def test_steps_end_where_the_rows_are_damaged(tmp_path: Path, damage, left: int) -> None:
    leave(tmp_path, 4)
    path = path_of(tmp_path, 0)
    path.write_bytes(damage(path.read_bytes()))
    assert [step.step for step in read_steps(tmp_path)] == list(range(left))
    assert whole_steps(tmp_path, 0, 9) == left
    assert whole_steps(tmp_path, 0, 1) == min(left, 1)


def test_rows_of_another_rank_are_none_of_ours(tmp_path: Path) -> None:
    leave(tmp_path, 0, 3)
    path_of(tmp_path, 1).rename(path_of(tmp_path, 0))
    assert whole_steps(tmp_path, 0, 3) == 0 and read_steps(tmp_path) == []


def test_a_resume_cuts_back_to_the_checkpoint_or_is_refused(tmp_path: Path) -> None:
    leave(tmp_path, 4)
    with path_of(tmp_path, 0).open("ab") as stream:
        stream.write(b"half of a row")
    with StepFile(tmp_path, 0, done=2) as steps:
        steps.write(made(2, loss=5.0))
    assert read_steps(tmp_path) == [made(0), made(1), made(2, loss=5.0)]
    with pytest.raises(LaunchError, match=r"rank0\.steps has 3 of the checkpoint's 4 steps"):
        StepFile(tmp_path, 0, done=4)
    with StepFile(tmp_path, 0) as steps:
        assert read_steps(tmp_path) == [], "a start anew keeps nothing"
        steps.to_disk()


def test_a_profiled_run_is_cut_back_too(tmp_path: Path) -> None:
    written = [made(n, phases=PHASES) for n in range(3)]
    with StepFile(tmp_path, 0) as steps:
        for step in written:
            steps.write(step)
        steps.to_disk()
    assert all(step_files.is_one(path) for path in tmp_path.iterdir())
    with StepFile(tmp_path, 0, done=1) as steps:
        steps.write(made(1, phases=PHASES, loss=5.0))
    assert read_steps(tmp_path) == [written[0], made(1, phases=PHASES, loss=5.0)]


def test_a_rank_of_an_earlier_start_does_not_write_into_the_new_file(tmp_path: Path) -> None:
    with StepFile(tmp_path, 0) as old:
        old.write(made(0))
        with StepFile(tmp_path, 0, done=1) as new:
            old.write(made(1, loss=9.0))
            new.write(made(1))
    assert read_steps(tmp_path) == [made(0), made(1)]


def test_rank_0_is_seen_at_once_and_others_when_a_checkpoint_needs_them(tmp_path: Path) -> None:
    for rank in (0, 1):
        with StepFile(tmp_path, rank) as steps:
            steps.write(made(0, rank))
            assert whole_steps(tmp_path, rank, 1) == (rank == 0)
            steps.to_disk()
            assert whole_steps(tmp_path, rank, 1) == 1
