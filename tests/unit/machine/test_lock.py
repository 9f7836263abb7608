"""The lock of timed runs lies where nobody else can put something in its place."""

import errno
import fcntl
import os
import re
import signal
import threading
import time
from pathlib import Path

import pytest

from pipeline.errors import LaunchError
from pipeline.machine.lock import FILE, timed_alone
from pipeline.machine.processes import is_stopped


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    return tmp_path / f"samestep-{os.getuid()}"


def test_it_is_held_in_a_folder_of_this_user_alone(own: Path) -> None:
    with timed_alone("smoke/dps/n1/r0"), (own / FILE).open() as other:
        assert own.stat().st_mode & 0o777 == 0o700
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with (own / FILE).open() as other:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_what_others_could_have_put_there_is_refused(own, tmp_path, monkeypatch) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    own.symlink_to(elsewhere)
    with pytest.raises(LaunchError, match="is not a folder that only this user"):
        timed_alone("run").__enter__()
    own.unlink()
    own.mkdir()
    own.chmod(0o777)
    with pytest.raises(LaunchError, match="have it removed or set TMPDIR"):
        timed_alone("run").__enter__()
    own.chmod(0o700)
    (own / FILE).symlink_to(elsewhere / "theirs")
    with pytest.raises(LaunchError, match=r"symbolic links.*remove what is there, or set TMPDIR"):
        timed_alone("run").__enter__()
    assert not list(elsewhere.iterdir())
    # Of another user, who can put another lock there, however it may be written to now.
    other = os.getuid() + 1
    (tmp_path / f"samestep-{other}").mkdir(mode=0o700)
    monkeypatch.setattr("os.getuid", lambda: other)
    with pytest.raises(LaunchError, match="is not a folder that only this user"):
        timed_alone("run").__enter__()


def test_who_waits_is_told_who_holds_it(own: Path, capsys) -> None:
    holds, ends = threading.Event(), threading.Event()

    def hold() -> None:
        with timed_alone("smoke/dps/n8/r3"):
            holds.set()
            ends.wait(60)

    # A lock of flock() belongs to an open file, so threads wait for one another as processes do.
    holder = threading.Thread(target=hold)
    holder.start()
    assert holds.wait(60)
    waiting = threading.Thread(target=lambda: timed_alone("smoke/sps/n2/r0").__enter__())
    waiting.start()
    while not (line := capsys.readouterr().err):
        time.sleep(0.01)
    ends.set()
    holder.join()
    waiting.join(60)
    assert re.fullmatch(
        r"note: smoke/sps/n2/r0 waits for another timed run on this machine: "
        rf"smoke/dps/n8/r3, process {os.getpid()} since [\d-]{{10}} [\d:]{{8}} \w+, in /.*\n",
        line,
    )
    assert "smoke/sps/n2/r0" in (own / FILE).read_text()


def stopped_holder(out: Path) -> int:
    """A process that holds the lock for a run of the folder `out`, and is stopped."""
    read, write = os.pipe()
    if (pid := os.fork()) == 0:
        with timed_alone("smoke/dps/n8/r3", out):
            os.write(write, b"1")
            os.kill(os.getpid(), signal.SIGSTOP)
        os._exit(0)
    os.read(read, 1)
    while not is_stopped(pid):
        time.sleep(0.01)
    return pid


def test_a_stopped_start_of_another_run_is_named(own: Path, tmp_path: Path, capsys) -> None:
    pid = stopped_holder(tmp_path / "other")
    lines: list[str] = []

    def watch() -> None:
        while "is stopped" not in "".join(lines):
            lines.append(capsys.readouterr().err)
            time.sleep(0.01)
        os.kill(pid, signal.SIGCONT)

    watching = threading.Thread(target=watch)
    watching.start()
    with timed_alone("smoke/dps/n8/r3", tmp_path / "run"):
        assert os.waitpid(pid, 0)[1] == 0
    watching.join(60)
    assert f"`kill -CONT {pid}` continues it, `kill -KILL {pid}` ends it" in "".join(lines)


@pytest.mark.parametrize(
    ("number", "calls_before"),
    [(errno.ENOLCK, 0), (errno.ENOSYS, 0), (errno.EIO, 0), (errno.ESTALE, 2)],
)
def test_a_call_that_fails_is_no_lock_of_another(own, monkeypatch, number, calls_before) -> None:
    """A server of files may go while a run waits for another."""
    answers: list[OSError] = [BlockingIOError(errno.EAGAIN, "taken")] * calls_before
    answers.append(OSError(number, os.strerror(number)))

    def flock(stream: int, operation: int) -> None:
        raise answers.pop(0)

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(LaunchError, match=rf"{os.strerror(number)}.*set TMPDIR"):
        timed_alone("run").__enter__()
