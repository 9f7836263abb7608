"""A study while it runs: `python -m pipeline watch`, and the one line of `make paper`.

Records are the truth: a run has ended where its record is there and of the same training as its
spec. They are read, each once, as they appear; the workflow validates them. No torch, no pandas.
"""

from __future__ import annotations

import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from io import TextIOWrapper
from itertools import chain, pairwise
from os import getpid
from pathlib import Path
from typing import TextIO

from pipeline import strategies
from pipeline.documents import read_lines, read_made
from pipeline.errors import MissingError, RecordError, SamestepError, StudyError, UnsupportedError
from pipeline.machine.processes import exit_status, wait_for_one
from pipeline.records import RUN_FILE, STEPS_FILE
from pipeline.study.expansion import every_run
from pipeline.study.load import PointsStudy
from pipeline.study.spec import TIMED, RunSpec
from pipeline.study.study import Study

REFRESH_SECONDS = 2.0
POLL_SECONDS = 1.0  # a poll of 252 records takes less than a millisecond of CPU time
ANSWER, ANSWER_SECONDS = b"Will exit after finishing", 15.0
"""Words of Snakemake once it is asked to end, and seconds that it may take to say them."""
NOTABLE = r"(?:error:|warning:|note:|mixed:|NOT EQUAL|interrupted|{study}/)"
_RULE = re.compile(r"(?:local)?rule (\w+):$")
_STEP = re.compile(r": (step \d+/\d+, |waits: |the machine is quiet)")
_OF_A_RUN = re.compile(r"^\S+/\S+/[a-z][0-9]+: ")


@dataclass(frozen=True)
class EndedRun:
    """A run that has ended; `started` and `ended` are in seconds since the epoch.

    `step_seconds` is the median of its timed steps, each the time of the slowest rank, if any are.
    """

    spec: RunSpec
    status: str
    reason: str
    started: float
    ended: float
    step_seconds: float | None


class Watched:
    """A study and its results folder; call `update` now and then."""

    def __init__(self, study: Study | PointsStudy, results: Path) -> None:
        self.study, self.results = study, results
        runs = every_run(study) if isinstance(study, Study) else []
        self.planned = {results / "runs" / spec.folder / RUN_FILE: spec for spec in runs}
        self.ended: dict[Path, EndedRun] = {}
        self._seen: dict[Path, int | None] = {}

    def update(self) -> None:
        """Read the records that are new since the last call."""
        for file, spec in self.planned.items():
            stamp = None
            with suppress(OSError):  # not there, or not there again where a run is repeated
                stamp = file.stat().st_mtime_ns
            if stamp != self._seen.get(file):
                self._seen[file] = stamp
                self.ended.pop(file, None)
                if stamp and (run := _read(file.parent, spec)):
                    self.ended[file] = run

    def take_back(self) -> dict[str, list[Path]]:
        """Count runs that may end otherwise now as not ended: why -> their records."""
        records = defaultdict(list)
        for file, run in self.ended.items():
            if run.status == "disturbed":
                records["that other programs disturbed"].append(file)
            elif run.reason.startswith(f"{MissingError.__name__}:"):
                with suppress(UnsupportedError):
                    strategies.load(run.spec.strategy, run.spec.options).check()
                    records["that lacked a package which is there now"].append(file)
        for file in chain(*records.values()):
            del self.ended[file]
        return records

    def set_aside(self) -> list[str]:
        """Rename records that a disk has emptied or cut, and say so: a line on each.

        Snakemake knows records by their names, and every start would end at such a one.
        """
        lines = []
        for file in filter(Path.is_file, self.planned):
            content, steps = file.read_bytes().strip(b"\0\n"), file.with_name(STEPS_FILE)
            has_steps = steps.is_file() and steps.stat().st_size > 0
            if not content.endswith(b"}") or (b'"status": "ok"' in content and not has_steps):
                kept = file.replace(file.with_name(f"{file.name}.damaged"))
                lines.append(
                    f"note: a disk emptied or cut a record, kept as {kept}: its run is redone"
                )
        return lines

    def line(self, now: str = "") -> str:
        """`37 of 84 runs (2 oom), about 0:04:10 left; last: dps/n4/r2, 26.4 ms a step; now ...`.

        `now` is what is under way. A run that is left is expected to take what passed between the
        ends of two of the last 20 (median).
        """
        runs, planned = sorted(self.ended.values(), key=lambda run: run.ended), len(self.planned)
        text = f"{len(runs)} of {planned} runs" if planned else "no runs, as nothing is trained"
        if failed := Counter(run.status for run in runs if run.status != "ok"):
            text += f" ({', '.join(f'{count} {status}' for status, count in failed.items())})"
        if runs and len(runs) < planned:
            between = [after - end for end, after in pairwise(run.ended for run in runs[-20:])]
            each = statistics.median(between or [runs[-1].ended - runs[-1].started])
            text += f", about {timedelta(seconds=round(each * (planned - len(runs))))} left"
            last = runs[-1]
            text += f"; last: {last.spec.folder}, "
            if last.step_seconds is not None:
                text += f"{1000 * last.step_seconds:,.1f} ms a step"
            else:
                text += last.spec.kind if last.status == "ok" else last.status
        return f"{text}; now {now}" if now else text


def _read(folder: Path, spec: RunSpec) -> EndedRun | None:
    """The run of a record; None where that is damaged or of another training, as it is repeated."""
    try:
        run = read_made(folder / RUN_FILE, "", RecordError, "snakemake")
        if RunSpec.from_dict(run["spec"]).identity() != spec.identity():
            return None
        begun = datetime.fromisoformat(run["started_at"]).timestamp()
        ended = datetime.fromisoformat(run["ended_at"]).timestamp()
        status, seconds, slowest = str(run["status"]), None, defaultdict[int, float](float)
        if status == "ok" and spec.kind == TIMED:
            for _, line in read_lines(folder / STEPS_FILE, RecordError):
                if line["timed"]:
                    slowest[line["step"]] = max(line["seconds"], slowest[line["step"]])
            seconds = statistics.median(slowest.values())
        return EndedRun(spec, status, run.get("reason") or "", begun, ended, seconds)
    except (RecordError, StudyError, LookupError, AttributeError, TypeError, ValueError):
        return None


def watch(watched: Watched) -> None:
    """Print the line of a study as it changes, until all runs have ended or at Control-C.

    Without a terminal it is printed once.
    """
    shown = ""
    with suppress(KeyboardInterrupt):
        while True:
            watched.update()
            if (line := watched.line()) != shown:
                shown = line
                print(line, flush=True)
            if not sys.stdout.isatty() or len(watched.ended) == len(watched.planned):
                break
            time.sleep(REFRESH_SECONDS)


class Follower:
    """Shows one line of progress of a watched study, and what matters of the workflow's `log`.

    The line is rewritten on a terminal, and otherwise printed now and then.
    """

    def __init__(self, watched: Watched, log: Path, out: TextIO) -> None:
        self.watched, self.log, self.out = watched, log, out
        self._notable = re.compile(NOTABLE.format(study=re.escape(watched.study.name)))
        if isinstance(out, TextIOWrapper):  # labels, whatever the locale
            out.reconfigure(errors="replace")
        self._offset, self._rule, self._step, self._shown = 0, "", "", (-1, "")
        self.printed: dict[str, str] = {}

    def update(self) -> None:
        """Show what is new in the log and in the results."""
        with self.log.open("rb") as stream:
            stream.seek(self._offset)
            content = stream.read()
        whole = content[: content.rfind(b"\n") + 1]
        self._offset += len(whole)
        for text in whole.decode("utf-8", errors="replace").splitlines():
            # What is said of every run alike (`no emulated network here`) is shown once.
            words = _OF_A_RUN.sub("", text)
            if match := _RULE.match(text):
                self._rule = "" if match[1].startswith(("train", "run_spec", "all")) else match[1]
                self._step = ""
            elif _STEP.search(text):
                self._step = text.partition("/")[2]
            elif self._notable.match(text) and words not in self.printed:
                self.printed[words] = text
                self.say(text)
        self.watched.update()
        line = self.watched.line(self._rule or self._step)
        if self.out.isatty():
            line = line[: shutil.get_terminal_size().columns - 1]
            print(f"\r{line}\x1b[K", end="", file=self.out, flush=True)
            return
        # About twenty lines a study, and one for each rule beside its runs.
        now = (20 * len(self.watched.ended) // max(len(self.watched.planned), 1), self._rule)
        if now != self._shown:
            print(line, file=self.out, flush=True)
        self._shown = now

    def say(self, text: str = "") -> None:
        """Print a line; on a terminal in the place of that of progress, which is taken away."""
        gone = "\r\x1b[K" if self.out.isatty() else ""
        print(f"{gone}{text}", end="\n" if text else "", file=self.out, flush=True)

    def follow(self, command: Sequence[str]) -> int:
        """Run `command` to its end, its output appended to the log; a signal reaches it too."""
        with self.log.open("ab") as stream:
            child = subprocess.Popen(command, stdout=stream, stderr=subprocess.STDOUT)
        try:
            while child.poll() is None:
                self.update()
                wait_for_one([child], POLL_SECONDS)
            self.update()
        except BaseException as error:
            # Control-C reaches the whole group, a signal of its own this process alone, and of a
            # broken pipe the workflow knows nothing: no orphan works on.
            if error.args or not isinstance(error, KeyboardInterrupt):
                with suppress(KeyboardInterrupt):
                    self.end(child)
            while child.poll() is None:
                with suppress(KeyboardInterrupt):
                    child.wait()
            raise
        return exit_status(child.returncode)

    def end(self, workflow: subprocess.Popen[bytes]) -> None:
        """Ask it to end after the jobs under way, and again where it does not answer.

        Snakemake's handler of SIGTERM takes a lock that the thread it interrupts may hold, and then
        waits for ever; a SIGINT, which is an exception there, ends that.
        """
        begun, deadline = self.log.stat().st_size, time.monotonic() + ANSWER_SECONDS
        workflow.terminate()
        while workflow.poll() is None and ANSWER not in self.log.read_bytes()[begun:]:
            if time.monotonic() > deadline:
                # A background job of a script has SIGINT ignored, and so have its children.
                ignored = signal.getsignal(signal.SIGINT) == signal.SIG_IGN
                workflow.send_signal(signal.SIGKILL if ignored else signal.SIGINT)
                return
            wait_for_one([workflow], 0.1)


def follow(
    watched: Watched, command: Sequence[str], out: TextIO = sys.stderr, *, retry: bool = False
) -> int:
    """Run the workflow of a watched study by `command`, and show its progress; its exit status.

    Its output goes to a file below `logs/workflow`. `retry`: runs that may end otherwise now are
    forced to be made again, at the start and after the end.
    """
    if shutil.which(command[0]) is None:
        raise SamestepError(f"there is no program {command[0]!r} to run; give one that is there")
    log = watched.results / "logs/workflow" / f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{getpid()}.txt"
    log.parent.mkdir(parents=True, exist_ok=True)
    follower = Follower(watched, log, out)
    watched.update()
    try:
        for attempt in range(2):
            again = watched.take_back() if retry else {}
            if attempt and not again:
                break
            for why, files in again.items():
                follower.say(f"note: {len(files)} run{'s' * (len(files) > 1)} {why}: tried again")
            forced = ["--forcerun", *map(str, chain(*again.values()))] if again else []
            if status := follower.follow([*command, *forced]):
                break
    finally:
        follower.say()
    if status:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        new = [text[:400] for text in lines[-40:] if text not in follower.printed.values()]
        print(*new, f"error: the workflow failed; all it said is in {log}", sep="\n", file=out)
    return status
