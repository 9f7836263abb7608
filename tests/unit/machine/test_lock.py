"""The lock of timed runs lies where nobody else can put something in its place."""

import fcntl
import os
import re
import threading
import time
from pathlib import Path

import pytest

from pipeline.errors import LaunchError
from pipeline.machine.lock import FILE, timed_alone


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


def test_what_others_could_have_put_there_is_refused(own: Path, tmp_path: Path) -> None:
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
    with pytest.raises(LaunchError, match="symbolic links"):
        timed_alone("run").__enter__()
    (own / FILE).unlink()
    (own / FILE).mkdir()
    with pytest.raises(LaunchError, match="remove what is there or set TMPDIR"):
        timed_alone("run").__enter__()
    assert not list(elsewhere.iterdir())


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
    while not (said := capsys.readouterr().err):
        time.sleep(0.01)
    ends.set()
    holder.join()
    waiting.join(60)
    assert re.fullmatch(
        r"note: smoke/sps/n2/r0 waits for another timed run on this machine: "
        rf"smoke/dps/n8/r3, process {os.getpid()} since [\d-]{{10}} [\d:]{{8}} \w+, in /.*\n",
        said,
    )
    assert "smoke/sps/n2/r0" in (own / FILE).read_text()
