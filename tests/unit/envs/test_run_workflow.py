"""envs/run_workflow.sh with a stand-in for Snakemake; tests/system has the real one."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.programs import ran, stand_in

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "envs" / "run_workflow.sh"


def run(
    folder: Path, *arguments: str, snakemake: str = 'echo ran "$@"'
) -> subprocess.CompletedProcess[str]:
    stand_in(folder / ".venv/bin/snakemake", snakemake)
    return ran(["/bin/sh", str(SCRIPT), *arguments], cwd=folder, timeout=60)


@pytest.mark.parametrize("waits", [False, True], ids=["at once", "while it waits"])
def test_a_file_system_without_locks_is_one_line(tmp_path: Path, monkeypatch, waits: bool) -> None:
    """71 is what util-linux says of ENOLCK, also of a server of files that goes meanwhile."""
    first = "[ -e asked ] || { touch asked; exit 1; }; " if waits else ""
    stand_in(tmp_path / "bin/flock", f"{first}exit 71")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    done = run(tmp_path, "--cores", "1")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1 + waits)
    assert "cannot be locked" in done.stderr


@pytest.mark.parametrize("missing", ["flock", "which"])
def test_a_program_that_is_missing_is_one_line(tmp_path: Path, monkeypatch, missing: str) -> None:
    programs = {"sh", "env", "sed", "flock", "which", "find", "mkdir", "tail"} - {missing}
    (tmp_path / "bin").mkdir()
    for name in programs:
        (tmp_path / "bin" / name).symlink_to(str(shutil.which(name)))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    done = run(tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: the program '{missing}' is missing; install")


def test_a_user_without_a_name_or_a_folder_for_caches_gets_both(tmp_path, monkeypatch) -> None:
    stand_in(tmp_path / "bin/id", '[ "$1" = -u ] && echo 54321')
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", "/dev/null")
    for name in ("XDG_CACHE_HOME", "USER"):
        monkeypatch.delenv(name, raising=False)
    done = run(tmp_path, snakemake='echo "$USER" "$XDG_CACHE_HOME"')
    assert done.stdout == f"user54321 {tmp_path}/.snakemake/cache\n"
    assert "note: /dev/null/.cache/snakemake cannot be written; caches go to" in done.stderr


def test_rules_run_in_a_shell_that_reads_nothing_first(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("BASH_ENV", "conda.sh")
    assert "[]" in run(tmp_path, snakemake='echo "[${BASH_ENV-}]"').stdout
