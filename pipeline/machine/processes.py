"""Processes: how they start, tell and end, and how this one takes memory from the C library.

Whoever asks a preloaded process imports this, so heavy modules are imported where they are used.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, Self

from pipeline.errors import LaunchError, SamestepError

PR_SET_PDEATHSIG = 1
Running = subprocess.Popen[bytes]
Tell = Callable[[Any], None]


def die_with_parent() -> None:
    """Ask Linux to kill this process when its parent ends, however it ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def stay_with(parent: int) -> None:
    """End when `parent` ends; raises LaunchError where it already has."""
    die_with_parent()
    # It may have ended before Linux was asked to tell of it.
    if os.getppid() != parent:
        raise LaunchError("the process that started this one has gone")


def interrupt_on_sigterm() -> None:
    """Raise KeyboardInterrupt in this process on SIGTERM, so that what it started is ended too."""

    def interrupt(number: int, _: object) -> NoReturn:
        raise KeyboardInterrupt(f"by signal {number}")

    signal.signal(signal.SIGTERM, interrupt)


def exit_status(code: int) -> int:
    """Exit status that passes a child's end on: 128 + n for its death by signal n."""
    return 128 - code if code < 0 else code


def signal_of(code: int) -> int | None:
    """The signal behind an exit code, of a child or as a shell or a runtime passes it on."""
    if code < 0:
        return -code
    return code - 128 if 128 < code <= 128 + signal.SIGRTMAX else None


def end_as(status: int) -> NoReturn:
    """End this process with an exit status; where that tells of a signal, by this signal."""
    if (number := signal_of(status)) is not None:
        with contextlib.suppress(OSError):  # SIGKILL has no handler
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    sys.exit(status)


def is_stopped(pid: int) -> bool:
    """True where a process is stopped (SIGSTOP, SIGTSTP) and waits for SIGCONT."""
    import psutil

    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    except psutil.Error:
        return False


def stopped_below(pids: Sequence[int]) -> list[int]:
    """The stopped ones among these processes and all that they started."""
    import psutil

    family = {*pids}
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            family |= {child.pid for child in psutil.Process(pid).children(recursive=True)}
    return sorted(filter(is_stopped, family))


def start(command: Sequence[str], environment: Mapping[str, str], log: Path) -> Running:
    """Start `command` in a session of its own, its output appended to `log`."""
    # A session is a group of its own: a signal to it reaches all that the command starts, and those
    # of a terminal reach this process alone, which decides.
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )


def wait_for_one(processes: Sequence[Running], seconds: float) -> None:
    """Return when one of those that still run ends, or after so many seconds."""
    handles = [os.pidfd_open(process.pid) for process in processes if process.poll() is None]
    try:
        select.select(handles, [], [], seconds)
    finally:
        for handle in handles:
            os.close(handle)


def stop(processes: Sequence[Running], grace_seconds: float = 5.0) -> None:
    """Terminate the process groups, then kill what is left after the grace."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        # Also of those that have ended: what they started may live on in their group.
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
        deadline = time.monotonic() + grace_seconds
        while time.monotonic() < deadline and any(p.poll() is None for p in processes):
            time.sleep(0.05)


class Child:
    """A forked process that does `work` and ends with its status, or with this process.

    As a context manager it is killed at the end of the context. With `at_exit` it runs the exit
    handlers, by which Horovod shuts down (else its peers see an abort), but also those that this
    process had before.
    """

    def __init__(self, work: Callable[[], object], *, at_exit: bool = True) -> None:
        parent = os.getpid()
        # What is buffered would be written by both.
        sys.stdout.flush()
        sys.stderr.flush()
        self.code: int | None = None
        self.pid = os.fork()
        if self.pid:
            return
        code = 1
        try:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            stay_with(parent)
            result = work()
            code = result if isinstance(result, int) else 0
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            if at_exit:
                atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
            # Never back into the code of whoever forked.
            os._exit(code)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
        return self.code

    def wait(self) -> int:
        """Its exit code, once it has ended."""
        if self.code is None:
            self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.code

    def kill(self) -> None:
        """End it at once where it still runs."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
            self.wait()


class Teller(Child):
    """A child that tells this process values; `work` gets the function to tell them."""

    def __init__(self, work: Callable[[Tell], object]) -> None:
        from multiprocessing import Pipe

        self._reader, writer = Pipe(duplex=False)

        def child() -> int:
            self._reader.close()
            try:
                work(writer.send)
            except Exception as error:
                if not isinstance(error, SamestepError | OSError):
                    sys.excepthook(*sys.exc_info())  # a bug has more to say than a line
                kind = "" if isinstance(error, LaunchError) else f"{type(error).__name__}: "
                writer.send(LaunchError(kind + " ".join(str(error).split())))
                return 1
            return 0

        super().__init__(child, at_exit=False)
        writer.close()

    def hear(self) -> Any:
        """The next value; raises LaunchError, with the child's own words, where it has failed."""
        try:
            value = self._reader.recv()
        except EOFError:
            value = LaunchError(f"a process for it ended with code {self.wait()}")
        if isinstance(value, LaunchError):
            raise value
        return value

    def kill(self) -> None:
        """End it at once where it still runs, and close the pipe."""
        super().kill()
        self._reader.close()


def at_once(works: Iterable[Callable[[], Any]], places: Iterable[Iterable[int]]) -> list[Any]:
    """Values of these functions, each of a child on the cores of its place, all at once.

    Returns once all have ended; raises LaunchError where one failed.
    """

    def measure(work: Callable[[], Any], cores: Iterable[int], tell: Tell) -> None:
        os.sched_setaffinity(0, cores)
        tell(work())

    pairs = zip(works, places, strict=True)
    try:
        with contextlib.ExitStack() as stack:
            children = [stack.enter_context(Teller(partial(measure, *pair))) for pair in pairs]
            values = [child.hear() for child in children]
            for child in children:
                child.wait()  # it ends by itself: none is killed while it still writes
            return values
    except LaunchError as error:
        raise LaunchError(f"a measuring process failed: {error}") from None


M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3
SETTINGS = {M_MMAP_THRESHOLD: 1 << 30, M_TRIM_THRESHOLD: (1 << 31) - 1, M_TOP_PAD: 64 << 20}
"""Parameters of mallopt(3), in bytes."""


def keep_freed_memory() -> bool:
    """Take blocks of up to 1 GiB from the heap and never shrink it; False where there is no glibc.

    By default glibc maps each larger block anew, and the kernel then clears its pages one by one:
    in the default study 3,000 to 4,000 page faults a step, a sixth of its CPU seconds, and their
    number differs from run to run as the threshold moves by itself.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and all(mallopt(*setting) == 1 for setting in SETTINGS.items())
