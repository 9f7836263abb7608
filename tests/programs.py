"""Programs that tests start, stand-ins for some, and waiting for what they do."""

import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any


def ran(command: Sequence[str | Path], **options: Any) -> subprocess.CompletedProcess[str]:
    """A program that has ended, with what it said; `options` are those of `subprocess.run`."""
    return subprocess.run(command, capture_output=True, text=True, **options)


def stand_in(path: Path, words: str = "exit 0") -> Path:
    """Write a program of the shell, or one that begins with the name of another interpreter."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(words if words.startswith("#!") else f"#!/bin/sh\n{words}\n")
    path.chmod(0o755)
    return path


def wait_until(holds: Callable[[], Any], seconds: float = 60) -> None:
    """Wait until something holds; raises AssertionError where it does not after `seconds`."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"not within {seconds:g} s"
        time.sleep(0.02)
