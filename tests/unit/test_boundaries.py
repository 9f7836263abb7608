"""Boundaries that import-linter cannot state: submodules of others, and links."""

import re
from pathlib import Path

import pytest

from tests.programs import ran

ROOT = Path(__file__).parents[2]
DISTRIBUTED = re.compile(r"torch\.distributed|torch\.nn\.parallel|from torch import .*distributed")


def test_models_never_name_torch_distributed() -> None:
    files = sorted((ROOT / "pipeline/models").rglob("*.py"))
    assert [file for file in files if DISTRIBUTED.search(file.read_text(encoding="utf-8"))] == []


def test_the_repository_holds_no_link() -> None:
    """A link in place of a folder is not ignored by `/name/`, and would be committed."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout of git")
    listed = ran(["git", "ls-files", "--stage"], cwd=ROOT, check=True).stdout.splitlines()
    assert [line for line in listed if line.startswith("120000")] == []
