"""Children that this process forks; they never outlive it."""

from __future__ import annotations

import atexit
import os
import signal
import sys
from collections.abc import Callable, Iterable
from multiprocessing import Pipe
from typing import Any

from pipeline.errors import LaunchError, SamestepError
from pipeline.machine.processes import die_with_parent

Tell = Callable[[Any], None]


def stay_with(parent: int) -> None:
    """End when `parent` ends; raises LaunchError where it already has."""
    die_with_parent()
    # It may have ended before Linux was asked to tell of it.
    if os.getppid() != parent:
        raise LaunchError("the process that started this one has gone")


class Child:
    """A forked process that does `work` and ends with its status, or with this process.

    With `at_exit` it runs the exit handlers, by which Horovod shuts down (else its peers see an
    abort), but also those that this process had before.
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


def measuring(work: Callable[[], Any], cores: Iterable[int]) -> Teller:
    """A child on these cores that tells what `work` gives."""

    def measure(tell: Tell) -> None:
        os.sched_setaffinity(0, cores)
        tell(work())

    return Teller(measure)


def measured_by(child: Teller) -> Any:
    """The value of a measuring child, once it has ended; raises LaunchError where it failed."""
    try:
        value = child.hear()
        child.wait()
        return value
    except LaunchError as error:
        raise LaunchError(f"a measuring process failed: {error}") from None
    finally:
        child.kill()
