"""Set-up never clears an environment of another checkout, and says in one line what it lacks."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_an_environment_behind_a_symlink_is_not_cleared_for_another_checkout(
    tmp_path: Path,
) -> None:
    other, here = tmp_path / "other" / ".venv", tmp_path / "here"
    (other / "bin").mkdir(parents=True)
    (other / ".home").write_text(f"{other.parent}\n")
    (here / "envs").mkdir(parents=True)
    for name in ("setup.sh", "preflight.sh"):
        shutil.copy(ROOT / "envs" / name, here / "envs")
    (here / ".venv").symlink_to(other)
    done = subprocess.run(
        ["sh", "envs/setup.sh", ".venv/.stamp"], cwd=here, capture_output=True, text=True
    )
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"error: .venv is a symlink to {other}, the environment of")
    assert (other / "bin").is_dir() and not (other / ".stamp").exists()


def test_a_lock_that_is_missing_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "envs").mkdir()
    for name in ("setup.sh", "preflight.sh"):
        shutil.copy(ROOT / "envs" / name, tmp_path / "envs")
    done = subprocess.run(
        ["sh", "envs/setup.sh", ".venv/.stamp"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("error: envs/requirements.lock is missing")
    assert not (tmp_path / ".venv").exists()
