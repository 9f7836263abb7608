"""`check` rehearses the stages after training, and says in one line which of them would fail."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from pipeline.__main__ import main
from pipeline.commands.rehearse import rehearse
from pipeline.errors import SamestepError
from pipeline.paper import export, manuscript
from pipeline.study.study import Study
from tests.fake_records import EMULATED, a_cell, make_study

pytestmark = pytest.mark.slow


@pytest.fixture
def litter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of temporary files, which must be empty afterwards."""
    (folder := tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def study(**changes: object) -> Study:
    cells = make_study()["cells"][:3]
    return Study.of(make_study(**{"cells": cells, "profile": {"steps": 4}, **changes}))


def test_it_goes_through_every_stage_with_its_own_pandoc_and_leaves_nothing(
    litter: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The shell names another pandoc."""
    (other := litter.with_name("bin") / "pandoc").parent.mkdir()
    other.write_text("#!/bin/sh\necho pandoc 99.0\n")
    other.chmod(0o755)
    monkeypatch.setenv("PATH", str(other.parent), prepend=":")
    monkeypatch.setenv("PYPANDOC_PANDOC", str(other))
    rehearse(study(cluster=EMULATED | {"real_time": True}, claims=["bai2022"]))
    assert not [*litter.iterdir()]
    assert capfd.readouterr() == ("", "")


def test_ranks_that_share_a_sequence_need_no_sequence_each(litter: Path) -> None:
    cell = a_cell("tensor", "tensor", workload={"global_batch": 2}, nodes=[4])
    rehearse(study(cells=[cell], compares=["global_batch"]))


def test_a_tool_that_cannot_run_is_named_with_its_stage(
    litter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "SOURCES", manuscript.SOURCES / "nowhere")
    with pytest.raises(SamestepError, match=r"`paper` would fail after the last run: pandoc "):
        rehearse(study())
    assert not [*litter.iterdir()]


def test_check_rehearses_until_a_run_has_a_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("pipeline.accept.accept_to_run", lambda study: None)

    def refuse(study: Study) -> None:
        raise SamestepError("`page` would fail after the last run: it is so")

    monkeypatch.setattr("pipeline.commands.rehearse.rehearse", refuse)
    assert main(["check", "--study", "smoke"]) == 2
    assert "error: `page` would fail" in capsys.readouterr().err
    run = tmp_path / "results/smoke/runs/dps/n1/r0/run.json"
    run.parent.mkdir(parents=True)
    run.touch()
    assert main(["check", "--study", "smoke"]) == 0
