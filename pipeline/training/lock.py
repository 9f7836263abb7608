"""One timed run at a time on a machine, whoever starts it."""

from __future__ import annotations

import fcntl
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def timed_alone(run_id: str) -> Iterator[None]:
    """Hold this user's machine-wide lock; waits, and says so, while another timed run goes on."""
    path = Path(tempfile.gettempdir()) / f"samestep-{os.getuid()}.lock"
    with path.open("a") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"{run_id}: waiting for another timed run on this machine", file=sys.stderr)
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield
