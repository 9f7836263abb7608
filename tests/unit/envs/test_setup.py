"""Set-up never clears an environment that belongs to another checkout."""

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
