"""A process that forks stages: what they say and how they end."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from pipeline.launch import waiting
from tests.unit.launch.test_preloaded import listens, wait_until


def words(process: psutil.Process) -> list[str]:
    """Of its command; an ended process of another test has none."""
    try:
        return process.cmdline()
    except psutil.ZombieProcess:
        return []


@pytest.fixture
def served(monkeypatch):
    """The waiting process of this test; `VARIABLE` names it."""
    ended: list[Callable[[], None]] = []
    monkeypatch.setenv(waiting.VARIABLE, "")
    monkeypatch.setattr("atexit.register", ended.append)
    waiting.start()
    wait_until(lambda: listens(os.environ[waiting.VARIABLE]))
    (process,) = [p for p in psutil.Process().children() if "pipeline.launch.waiting" in words(p)]
    yield process
    for end in ended:
        end()


def test_a_stage_is_a_fork_and_says_what_it_would_say_itself(served, tmp_path, monkeypatch) -> None:
    command = [
        sys.executable,
        "-m",
        "pipeline",
        "train",
        "--spec=gone.json",
        "--tokens=x",
        "--out=o",
    ]
    said = []
    for name in (os.environ[waiting.VARIABLE], ""):
        monkeypatch.setenv(waiting.VARIABLE, name)
        environment = os.environ | {"PYTHONPATH": str(Path.cwd())}
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        said.append((done.returncode, done.stdout, done.stderr))
    assert said[0] == said[1]
    assert said[0][0] == 2 and "gone.json" in said[0][2]
