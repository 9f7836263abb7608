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
from datetime import datetime
from pathlib import Path

from pipeline.errors import LaunchError
from pipeline.text import one_line

FILE = "timed.lock"


@contextmanager
def timed_alone(run_id: str) -> Iterator[None]:
    """Hold this user's machine-wide lock; waits while another run is timed, and says for which."""
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
            print(
                f"note: {run_id} waits for another timed run on this machine: {_holder(stream)}",
                file=sys.stderr,
            )
            fcntl.flock(stream, fcntl.LOCK_EX)
        _sign(stream, run_id)
        yield
    finally:
        os.close(stream)


def _sign(stream: int, run_id: str) -> None:
    """Write into the lock who holds it, for those who wait."""
    since = datetime.now().astimezone()
    who = f"{run_id}, process {os.getpid()} since {since:%Y-%m-%d %H:%M:%S %Z}, in {Path.cwd()}"
    # Who holds the lock need not be known for it to hold, on a full disk for example.
    with contextlib.suppress(OSError):
        os.ftruncate(stream, 0)
        os.pwrite(stream, who.encode(errors="replace"), 0)


def _holder(stream: int) -> str:
    """What the holder has written; an older version wrote nothing."""
    said = os.pread(stream, 500, 0).decode(errors="replace")
    return one_line(said) or "it does not say which"


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
