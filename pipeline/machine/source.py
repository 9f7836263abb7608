"""The source's commit: the one door to git, of the standard library alone (`envs.build_image`)."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

FILE = Path("pipeline/machine/source.py")
ROOT = Path(__file__).resolve().parents[2]


def provenance(root: Path = ROOT) -> dict[str, Any]:
    """The commit, and whether the source was changed since; None where git does not tell.

    A commit without this file is that of another project. A new strategy's file is a change.
    """
    tracked = _git(root, "ls-tree", "--name-only", "HEAD", FILE.as_posix())
    commit = _git(root, "rev-parse", "HEAD") if tracked else None
    changes = [
        _git(root, "status", "--porcelain", "--untracked-files=no"),
        _git(root, "ls-files", "--others", "--exclude-standard", "--", "pipeline"),
    ]
    return {
        "git_commit": commit,
        "git_dirty": None if commit is None or None in changes else any(changes),
    }


def _git(root: Path, *arguments: str) -> str | None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        # In a container the checkout often belongs to another user than the one who runs. A copy
        # without a repository, within another one, is none of that one's commits.
        done = subprocess.run(
            ["git", "-c", "safe.directory=*", *arguments],
            cwd=root,
            env=kept | {"GIT_CEILING_DIRECTORIES": str(root.resolve().parent)},
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
