"""One timed run at a time on a machine, whoever starts it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.errors import LaunchError

FILE = "timed.lock"


@contextmanager
def timed_alone(run_id: str) -> Iterator[None]:
    """Hold this user's machine-wide lock; waits, and says so, while another run is timed."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    path = _own_folder() / FILE
    try:
        stream = os.open(path, flags, 0o600)
    except OSError as error:
        raise LaunchError(
            f"the lock of timed runs {path} cannot be opened ({error.strerror}); remove what is "
            "there or set TMPDIR"
        ) from None
    try:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"{run_id}: waiting for another timed run on this machine", file=sys.stderr)
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield
    finally:
        os.close(stream)


def _own_folder() -> Path:
    """A folder on this machine that only this user can write to, made where it is not there.

    It lies in the temporary folder, where anybody may have taken its name before; raises
    LaunchError where somebody did.
    """
    path = Path(tempfile.gettempdir()) / f"samestep-{os.getuid()}"
    # A file of that name is refused below.
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    about = path.lstat()
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid() or about.st_mode & 0o022:
        raise LaunchError(
            f"{path} is not a folder that only this user can write to, and the lock of timed runs "
            "lies there; have it removed or set TMPDIR"
        )
    return path
