"""envs/run_workflow.sh with a stand-in for Snakemake; tests/system has the real one."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "envs" / "run_workflow.sh"


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    program = folder / ".venv/bin/snakemake"
    program.parent.mkdir(parents=True)
    program.write_text('#!/bin/sh\necho ran "$@"\n')
    program.chmod(0o755)
    return subprocess.run(
        ["/bin/sh", str(SCRIPT), *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    "given",
    [
        ("--configfile", "none.yaml"),
        ("--configfile=none.yaml",),
        ("--cores", "1", "--configfile="),
        ("--configfile", "fifo"),
        ("--configfiles", "."),
        ("--configfile", __file__, "none.yaml"),
        ("--configfile", "a\nb"),
        ("--configfile", "$(touch made)"),
    ],
)
def test_a_study_file_that_is_none_is_one_line(tmp_path: Path, given: tuple[str, ...]) -> None:
    os.mkfifo(tmp_path / "fifo")
    done = run(tmp_path, *given)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: study file '") and done.stderr.count("\n") == 1
    assert not (tmp_path / "made").exists() and not (tmp_path / ".snakemake").exists()


def test_arguments_reach_snakemake_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "my study.yaml").write_text("")
    done = run(tmp_path, "--configfile", "my study.yaml", "--cores", "1")
    assert done.returncode == 0
    assert done.stdout == "ran --configfile my study.yaml --cores 1 --rerun-incomplete\n"


def test_a_file_system_without_locks_is_one_line(tmp_path: Path, monkeypatch) -> None:
    flock = tmp_path / "bin" / "flock"
    flock.parent.mkdir()
    flock.write_text("#!/bin/sh\nexit 71\n")  # what util-linux says of ENOLCK
    flock.chmod(0o755)
    monkeypatch.setenv("PATH", f"{flock.parent}:{os.environ['PATH']}")
    done = run(tmp_path, "--cores", "1")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "cannot be locked" in done.stderr
