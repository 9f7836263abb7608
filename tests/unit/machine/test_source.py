"""Facts of the source; None where git does not tell, or tells of something else."""

import os
import subprocess
from pathlib import Path

import pytest

from pipeline.machine.source import FILE, provenance
from tests.programs import ran


@pytest.fixture
def checkout(tmp_path: Path) -> str:
    """A repository that holds the module; returns its commit."""
    (tmp_path / "file").write_text("one\n")
    (tmp_path / FILE).parent.mkdir(parents=True)
    (tmp_path / FILE).touch()
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    for arguments in (["init", "-q"], ["add", "."], [*identity, "commit", "-qm", "one"]):
        subprocess.run(["git", *arguments], cwd=tmp_path, check=True)
    done = ran(["git", "rev-parse", "HEAD"], cwd=tmp_path, check=True)
    return done.stdout.strip()


def test_the_commit_and_its_changes_are_named(checkout: str, tmp_path: Path) -> None:
    assert provenance(tmp_path) == {"git_commit": checkout, "git_dirty": False}
    (tmp_path / "file").write_text("two\n")
    assert provenance(tmp_path) == {"git_commit": checkout, "git_dirty": True}
    # A status that git cannot tell is not a clean one.
    (tmp_path / ".git/index").write_bytes(b"broken")
    assert provenance(tmp_path) == {"git_commit": checkout, "git_dirty": None}


def test_a_strategy_that_was_dropped_in_is_a_change(checkout: str, tmp_path: Path) -> None:
    (tmp_path / "my-study.yaml").touch()
    assert provenance(tmp_path) == {"git_commit": checkout, "git_dirty": False}
    (tmp_path / "pipeline/mine.py").touch()
    assert provenance(tmp_path) == {"git_commit": checkout, "git_dirty": True}


def test_a_repository_of_something_else_in_this_folder_has_no_commit_of_ours(
    checkout: str, tmp_path: Path
) -> None:
    """A copy of the checkout, unpacked where somebody keeps notes or settings."""
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    for arguments in (["rm", "-rq", "--cached", "pipeline"], [*identity, "commit", "-qm", "two"]):
        subprocess.run(["git", *arguments], cwd=tmp_path, check=True)
    assert provenance(tmp_path) == {"git_commit": None, "git_dirty": None}


def test_only_a_repository_of_this_project_itself_is_asked(checkout, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    assert provenance(tmp_path)["git_commit"] == checkout
    (tmp_path / "unpacked").mkdir()
    assert provenance(tmp_path / "unpacked") == {"git_commit": None, "git_dirty": None}
    monkeypatch.delenv("GIT_DIR")
    assert provenance(tmp_path / "unpacked") == {"git_commit": None, "git_dirty": None}


def test_a_checkout_of_another_user_still_has_a_commit(checkout: str, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may give a folder away")
    for path in (tmp_path, *tmp_path.rglob("*")):
        os.chown(path, 1234, 1234)
    refused = subprocess.run(["git", "rev-parse", "HEAD"], cwd=tmp_path, capture_output=True)
    assert refused.returncode != 0, "this git does not mind, so the test shows nothing"
    assert provenance(tmp_path)["git_commit"] == checkout
