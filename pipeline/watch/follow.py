"""Run the workflow with its output in a file, and print what a person waits for instead.

That is one line of progress, rewritten on a terminal and otherwise printed now and then; every line
of the output that says what somebody should know, at once; and, where the workflow fails, the last
lines of its output and the name of the file. What was shown is kept in `logs/progress.txt`.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from io import TextIOWrapper
from itertools import chain, count
from os import getpid
from pathlib import Path
from typing import TextIO

from pipeline.errors import SamestepError
from pipeline.files import made_folder
from pipeline.machine.processes import stopped_below, wait_for_one
from pipeline.watch.show import bar, line
from pipeline.watch.state import Watched

STOPPED_EVERY = 30
"""Polls of the folder between two searches for processes that a signal has stopped."""

POLL_SECONDS = 1.0
"""Between two polls of the folder, each a fraction of a millisecond of CPU time."""

LINES = 20
"""About how many lines of progress a study gives where there is no terminal."""

TAIL = 40
"""Lines of the output that are shown of a workflow that failed; Snakemake ends with its errors."""

MOST_WORDS = 50
"""Lines that are shown at once; a study whose every run warns is read in its log and report."""

PROGRESS_FILE = "progress.txt"

_WIDTH = 400
_OF_A_RUN = re.compile(r"^\S+/\S+/[a-z][0-9]+: ")
_STEP = re.compile(r": (step \d+/\d+, |waits: |the machine is quiet)")


class Follower:
    """Shows the progress of a watched study and what the workflow says in `log`."""

    def __init__(self, watched: Watched, log: Path, out: TextIO) -> None:
        self.watched, self.log, self.out = watched, log, out
        words = "|".join(("error:", "warning:", "note:", "mixed:", "NOT EQUAL", "interrupted"))
        self._notable = re.compile(rf"(?:{words}|{re.escape(watched.study.name)}/)")
        self._terminal = out.isatty()
        if isinstance(out, TextIOWrapper):  # a bar and labels, whatever the locale
            out.reconfigure(errors="replace")
        self._offset, self._told, self._words = 0, list[str](), set[str]()
        self._now = ""
        self._progress: tuple[int, str | None] = (-1, None)

    def update(self) -> None:
        """Show what is new in the log and in the results."""
        before = self._now
        for text in self._fresh():
            if _STEP.search(text):
                self._now = text.partition("/")[2]
            elif self._notable.match(text) and len(self._told) <= MOST_WORDS:
                # What is said of every run alike (`no emulated network here`) is shown once.
                words = _OF_A_RUN.sub("", text)
                if words in self._words:
                    continue
                self._words.add(words)
                self._told.append(text)
                more = f"more such lines are in {self.log}"
                self.say(text if len(self._told) <= MOST_WORDS else more)
        ended = self.watched.update()
        if ended:
            self._now = ""
        # Drawing costs more than looking, and runs are timed meanwhile.
        between = 0 < len(self.watched.ended) < len(self.watched.planned)
        if ended or self._now != before or not between:
            self._show()

    def tell_stopped(self, workflow: int) -> None:
        """Say which process of the workflow waits for SIGCONT for ever, each once."""
        for pid in stopped_below([workflow]):
            text = f"note: process {pid} is stopped; `kill -CONT {pid}` continues it"
            if text not in self._told:
                self._told.append(text)
                self.say(text)

    def tell_again(self, records: Mapping[str, Sequence[Path]]) -> None:
        """Say how many runs are made again, and why (see `Watched.take_back`)."""
        for why, files in records.items():
            self.say(f"note: {len(files)} run{'s' * (len(files) > 1)} {why}: tried again")

    def close(self) -> None:
        """Take the line away on a terminal."""
        if self._terminal:
            self.out.write("\r\x1b[K")
            self.out.flush()

    def tail(self) -> str:
        """The end of the log, long lines cut; without the lines that were shown already."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-TAIL:]
        return "".join(f"{_cut(text)}\n" for text in lines if text not in self._told)

    def _show(self) -> None:
        planned = max(len(self.watched.planned), 1)
        progress = (LINES * len(self.watched.ended) // planned, self.watched.phase())
        former, self._progress = self._progress, progress
        text = line(self.watched, self._now)
        if self._terminal:
            columns = shutil.get_terminal_size().columns
            drawn = f"{''.join(bar(self.watched))}  {text}"
            self.out.write(f"\r{drawn[: columns - 1]}\x1b[K")
            self.out.flush()
        if progress != former:
            self._keep(text)
            if not self._terminal:
                print(_cut(text), file=self.out, flush=True)

    def say(self, text: str) -> None:
        """Print a line and append it to the progress of the study."""
        self.close()
        print(_cut(text), file=self.out, flush=True)
        self._keep(text)

    def _keep(self, text: str) -> None:
        """Append the line and the time to the progress of all starts of this study."""
        with (self.watched.results / "logs" / PROGRESS_FILE).open("a", encoding="utf-8") as stream:
            stream.write(f"{datetime.now().astimezone():%F %T%z}  {_cut(text)}\n")

    def _fresh(self) -> list[str]:
        """Whole lines that the workflow has written since the last call."""
        with self.log.open("rb") as stream:
            stream.seek(self._offset)
            content = stream.read()
        whole = content[: content.rfind(b"\n") + 1]
        self._offset += len(whole)
        return whole.decode("utf-8", errors="replace").splitlines()


def follow(
    watched: Watched, command: Sequence[str], out: TextIO = sys.stderr, *, retry: bool = False
) -> int:
    """Run `command` to its end and return its exit status; a signal reaches the command too.

    Its output goes to a new file below `logs/workflow` of the results folder. `retry`: runs that
    may end otherwise now (`Watched.take_back`) are forced to be made again, at the start and once
    more after the end; records that are damaged are set aside, so that they are made again too.
    Raises SamestepError where the file cannot be written or the command cannot be started.
    """
    name = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{getpid()}.txt"
    log = watched.results / "logs" / "workflow" / name
    watched.update()
    damaged = watched.set_aside() if retry else []
    again = watched.take_back() if retry else {}
    child = _start(command, again, log)
    shown = Follower(watched, log, out)
    try:
        for path in damaged:
            shown.say(f"note: a disk emptied or cut a record, kept as {path}: its run is repeated")
        shown.tell_again(again)
        status = _wait(child, shown)
        if status == 0 and retry and (again := watched.take_back()):
            shown.tell_again(again)
            status = _wait(_start(command, again, log), shown)
    finally:
        shown.close()
    if status:
        print(f"{shown.tail()}error: the workflow failed; all it said is in {log}", file=out)
    return status


def _start(
    command: Sequence[str], again: Mapping[str, Sequence[Path]], log: Path
) -> subprocess.Popen[bytes]:
    forced = ["--forcerun", *map(str, chain(*again.values()))] if again else []
    new = not log.exists()
    with made_folder(log.parent):
        try:
            with log.open("ab") as stream:
                words = [*command, *forced]
                return subprocess.Popen(words, stdout=stream, stderr=subprocess.STDOUT)
        except (OSError, ValueError) as error:  # ValueError: a NUL in the command
            if new:
                log.unlink(missing_ok=True)
            reason = error.strerror if isinstance(error, OSError) else error
            raise SamestepError(
                f"could not start {command[0]!r} with its log in {log} ({reason}); fix the "
                "disk, its permissions or the command"
            ) from error


def _wait(child: subprocess.Popen[bytes], shown: Follower) -> int:
    interrupted: KeyboardInterrupt | None = None
    while True:
        try:
            for looked in count(1):
                if child.poll() is not None:
                    break
                shown.update()
                if looked % STOPPED_EVERY == 0:
                    shown.tell_stopped(child.pid)
                wait_for_one([child], POLL_SECONDS)
            shown.update()
            break
        except KeyboardInterrupt as error:
            # Control-C reaches the whole group; a signal of its own (`_terminate`) this process.
            if error.args:
                child.terminate()
            interrupted = error
        except BaseException:  # a pipe that is broken, for example: no orphan works on
            child.terminate()
            child.wait()
            raise
    if interrupted is not None:
        raise interrupted
    return 128 - child.returncode if child.returncode < 0 else child.returncode


def _cut(text: str) -> str:
    return text if len(text) <= _WIDTH else f"{text[:_WIDTH]} ..."
