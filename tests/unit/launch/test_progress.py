"""Progress follows a step file, also one that is replaced under its feet."""

from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.files import write_text
from pipeline.launch import progress
from pipeline.records import Step
from pipeline.study.expansion import expand
from pipeline.study.load import load_study
from pipeline.training.step_files import packed, path_of


@pytest.fixture
def shown(tmp_path) -> progress.Progress:
    run = expand(load_study(Path("workflow/config/smoke/study.yaml")))[0]
    run = replace(run, workload=replace(run.workload, steps=16))
    return progress.Progress(run, path_of(tmp_path, 0))


def rows(count: int, seconds: float) -> bytes:
    return packed(Step(0, 0, seconds, 8, 1.0, 1.0, 0.1, True)) * count


def test_a_file_left_by_a_killed_start_is_not_mixed_with_the_new_one(shown) -> None:
    shown.steps_file.write_bytes(rows(7, 0.123456789))
    shown.update()
    write_text(shown.steps_file, "")
    with shown.steps_file.open("ab") as stream:
        for _ in range(20):
            stream.write(rows(1, 2.0))
            stream.flush()
            shown.update()
    assert shown._done == 20 and shown._seconds == 40.0


def test_a_row_in_the_making_waits_for_its_end(shown, capsys, monkeypatch) -> None:
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    shown.steps_file.write_bytes(rows(2, 0.5) + rows(1, 0.5)[:9])
    shown.update()
    assert "step 2/16, 2,048 tokens/s, 7 s left" in capsys.readouterr().err


def test_no_file_yet_is_no_error(shown) -> None:
    shown.update()
