"""Progress of a run from its step file."""

from dataclasses import replace
from pathlib import Path

from pipeline.launch import progress
from pipeline.records import Step
from pipeline.study.expansion import expand
from pipeline.study.load import load_study
from pipeline.training.step_files import packed, path_of


def test_whole_rows_are_told_and_what_is_waited_for_once(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    run = expand(load_study(Path("workflow/config/smoke/study.yaml")))[0]
    run = replace(run, workload=replace(run.workload, steps=16))
    shown = progress.Progress(run, path_of(tmp_path, 0))
    shown.update()  # no file yet
    (tmp_path / "note.txt").write_text("waits: for a core")
    row = packed(Step(0, 0, 0.5, 8, 1.0, 1.0, 0.1, True))
    for rows in (b"", row * 2 + row[:9]):
        shown.steps_file.write_bytes(rows)
        shown.update()
    assert capsys.readouterr().err.splitlines() == [
        f"{run.run_id}: waits: for a core",
        f"{run.run_id}: step 2/16, 2,048 tokens/s, 7 s left",
    ]
