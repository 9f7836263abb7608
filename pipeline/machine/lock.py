"""One timed run at a time on a machine, whoever starts it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import signal
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from pipeline.errors import LaunchError
from pipeline.machine.processes import is_stopped
from pipeline.text import one_line

FILE = "timed.lock"
POLL_SECONDS = 0.2


@contextmanager
def timed_alone(run_id: str, out: Path = Path()) -> Iterator[None]:
    """Hold this user's machine-wide lock; waits while another run is timed, and says for which.

    `out` is the folder of the run's record. A stopped earlier start of the same run is continued,
    so that it sees that this one took over, and ends; of another run a note says how to.
    """
    path, about = _own_folder() / FILE, f", for {one_line(str(out.resolve()))}"
    with contextlib.ExitStack() as stack:
        try:
            # The kernel lets go of it when the last holder of the descriptor ends; ranks do not
            # inherit it. The file stays, since a new one of the name would be another lock.
            stream = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            stack.callback(os.close, stream)
            _take(stream, run_id, about)
        except OSError as error:
            raise LaunchError(
                f"the lock of timed runs {path} cannot be had ({error.strerror}); remove what is "
                "there, or set TMPDIR to a folder on a local disk"
            ) from None
        # It says who holds it, for those who wait; it holds all the same on a full disk.
        since = datetime.now().astimezone()
        who = f"{run_id}, process {os.getpid()} since {since:%Y-%m-%d %H:%M:%S %Z}"
        with contextlib.suppress(OSError):
            os.ftruncate(stream, 0)
            os.pwrite(stream, f"{who}, in {Path.cwd()}{about}".encode(errors="replace"), 0)
        yield


def _take(stream: int, run_id: str, about: str) -> None:
    """Take the lock, or wait for it; a holder that is stopped would never let go of it."""
    waits, noted = False, ""
    while True:
        try:
            # Asked again and again, so that a holder that stops meanwhile is seen.
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            holder = one_line(os.pread(stream, 10_000, 0).decode(errors="replace"))
        if not waits:
            note = f"note: {run_id} waits for another timed run on this machine: {holder}"
            print(note, file=sys.stderr)
            waits = True
        named = re.search(r", process ([0-9]{1,9}) since ", holder)
        if named and is_stopped(int(pid := named[1])):
            if holder.endswith(about):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(int(pid), signal.SIGCONT)
            elif noted != pid:
                noted = pid
                print(
                    f"note: process {pid}, which holds it, is stopped; `kill -CONT {pid}` "
                    f"continues it, `kill -KILL {pid}` ends it",
                    file=sys.stderr,
                )
        time.sleep(POLL_SECONDS)


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
