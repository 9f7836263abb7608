from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pynvml
import pytest

from pipeline.machine import facts as machine


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A repository that holds the module; returns its commit."""
    (tmp_path / "file").write_text("one\n")
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    for arguments in (["init", "-q"], ["add", "file"], [*identity, "commit", "-qm", "one"]):
        subprocess.run(["git", *arguments], cwd=tmp_path, check=True)
    monkeypatch.setattr(machine, "__file__", str(tmp_path / "pipeline" / "training" / "machine.py"))
    done = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def test_the_commit_and_its_changes_are_named(checkout: str, tmp_path: Path) -> None:
    assert machine.provenance() == {
        "git_commit": checkout,
        "git_dirty": False,
    }
    (tmp_path / "file").write_text("two\n")
    assert machine.provenance() == {
        "git_commit": checkout,
        "git_dirty": True,
    }


def test_a_status_that_git_cannot_tell_is_not_a_clean_one(checkout: str, tmp_path: Path) -> None:
    (tmp_path / ".git/index").write_bytes(b"broken")
    assert machine.provenance() == {"git_commit": checkout, "git_dirty": None}


def test_only_a_repository_of_this_project_itself_is_asked(
    checkout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    assert machine.provenance()["git_commit"] == checkout
    monkeypatch.setattr(machine, "__file__", str(tmp_path / "unpacked/pipeline/machine/facts.py"))
    (tmp_path / "unpacked").mkdir()
    assert machine.provenance() == {"git_commit": None, "git_dirty": None}


def test_a_checkout_of_another_user_still_has_a_commit(checkout: str, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may give a folder away")
    for path in (tmp_path, *tmp_path.rglob("*")):
        os.chown(path, 1234, 1234)
    refused = subprocess.run(["git", "rev-parse", "HEAD"], cwd=tmp_path, capture_output=True)
    assert refused.returncode != 0, "this git does not mind, so the test shows nothing"
    assert machine.provenance()["git_commit"] == checkout


def test_without_a_repository_there_is_no_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "__file__", str(tmp_path / "a" / "b" / "machine.py"))
    (tmp_path / "a" / "b").mkdir(parents=True)
    provenance = machine.provenance()
    assert (provenance["git_commit"], provenance["git_dirty"]) == (None, None)


def test_a_gpu_that_may_not_be_asked_costs_no_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record is made after its run has trained; NVML refuses devices of other containers."""

    def handle(index: int) -> int:
        if index == 1:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NO_PERMISSION)
        return index

    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", lambda: 2)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", handle)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetName", lambda _: "NVIDIA A100-SXM4-80GB")
    assert machine.hardware()["gpus"] == ["NVIDIA A100-SXM4-80GB", "unknown"]
