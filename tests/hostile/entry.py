"""Call a stage in this process and hold what becomes of a wrong input.

One line on stderr that begins with `error: `, exit status 2, and nothing left behind.
"""

import io
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from types import FrameType
from unittest.mock import patch

from pipeline.__main__ import main

SECONDS, CPU_SECONDS = 120, 10
"""Of one call: what waits for ever, and what works too long, however busy the machine is."""


class Late(BaseException):
    """Raised in a call that takes too long; no stage catches it."""


def refusal(folder: Path, *arguments: str | Path) -> str:
    """The one line with which a stage refuses these arguments; `folder` is as it was before."""
    status, said = call(folder, *arguments)
    assert status == 2, (status, said)
    return said


def settled(folder: Path, *arguments: str | Path) -> bool:
    """Whether the arguments were taken; else they were refused as `refusal` wants it."""
    status, _ = call(folder, *arguments)
    assert status in (0, 1, 2)
    return status != 2


def call(folder: Path, *arguments: str | Path, may_leave: bool = False) -> tuple[int, str]:
    """Exit status and stderr of a stage whose temporary files lie in `folder` too.

    One that `may_leave` something fails for another reason than what it was given.
    """
    before = tree(folder)
    said = io.StringIO()
    in_folder = patch.object(tempfile, "tempdir", str(folder))
    with _in_time(), in_folder, redirect_stderr(said), redirect_stdout(io.StringIO()):
        status = main([str(argument) for argument in arguments])
    text = said.getvalue()
    if status == 2:
        assert text.startswith("error: ") and text.count("\n") == 1, text
        assert len(text) < 2000 and "Traceback" not in text, text
        after = tree(folder)
        assert may_leave or after == before, f"left behind: {after} after {before}"
    return status, text


def tree(folder: Path) -> dict[str, object]:
    """Name -> kind and size of all below `folder`."""
    states = {path: path.lstat() for path in sorted(folder.rglob("*"))}
    return {
        str(path): (state.st_mode, 0 if path.is_dir() else state.st_size)
        for path, state in states.items()
    }


@contextmanager
def _in_time() -> Iterator[None]:
    def late(number: int, frame: FrameType | None) -> None:
        raise Late(f"not done after {SECONDS} s, or {CPU_SECONDS} s of the processor")

    timers = ((signal.SIGALRM, signal.ITIMER_REAL, SECONDS),
              (signal.SIGPROF, signal.ITIMER_PROF, CPU_SECONDS))  # fmt: skip
    former = [signal.signal(number, late) for number, _, _ in timers]
    for _, timer, seconds in timers:
        signal.setitimer(timer, seconds)
    try:
        yield
    finally:
        for (number, timer, _), handler in zip(timers, former, strict=True):
            signal.setitimer(timer, 0)
            signal.signal(number, handler)
