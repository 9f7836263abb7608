"""What the results folder says of a study that runs; each record is read once. No torch, no pandas.

Records are the truth: a run has ended where its record is there and of the same training as its
spec. The workflow validates records; here they are only read, as they appear.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from pipeline import strategies
from pipeline.documents import parse, read_lines, read_made
from pipeline.errors import MissingError, RecordError, StudyError, UnsupportedError
from pipeline.records import RUN_FILE, STEPS_FILE
from pipeline.study.expansion import cells_of
from pipeline.study.real_time import every_run
from pipeline.study.spec import TIMED, RunSpec
from pipeline.study.study import Study

# Runs further apart than this were not made in one go, so what lies between them is no run's cost.
_PAUSE_SECONDS = 900.0
# As many of the last runs tell how much longer a run takes than its record says.
_LATELY = 20

_PRODUCTS = (
    ("metrics", "metrics/metrics.parquet"),
    ("figures", "figures/*.svg"),
    ("tables", "tables/*.csv"),
    ("paper", "paper/paper.pdf"),
    ("report", "report.html"),
)


@dataclass(frozen=True)
class Ended:
    """A run that has ended; `started` and `ended` are in seconds since the epoch.

    `step_seconds` is the median of its timed steps, each the time of the slowest rank; None for a
    run that is not timed and where the status is not `ok`, which has a `reason`.
    """

    spec: RunSpec
    status: str
    started: float
    ended: float
    step_seconds: float | None
    reason: str | None = None

    def may_end_otherwise(self) -> str | None:
        """Reason for another try now; None where it would end the same."""
        if self.status == "disturbed":
            return "that other programs disturbed"
        if not (self.reason or "").startswith(f"{MissingError.__name__}:"):
            return None
        try:
            strategies.load(self.spec.strategy, self.spec.options).check()
        except UnsupportedError:
            return None
        return "that lacked a package which is there now"


class Watched:
    """A study and its results folder; call `update` now and then."""

    def __init__(self, study: Study, results: Path) -> None:
        self.study, self.results = study, results
        self.ended: dict[str, Ended] = {}
        self.labels = {cell.name: cell.label for cell in cells_of(study)}
        self.planned = every_run(study)
        # Asked each second while runs are timed: 252 records take less than a millisecond.
        folders = (results / "runs" / spec.run_id.partition("/")[2] for spec in self.planned)
        self._files = [folder / RUN_FILE for folder in folders]
        self._seen: list[tuple[int, int] | None] = [None] * len(self.planned)

    def update(self) -> list[Ended]:
        """Read what is new; returns the runs that have ended since the last call, in that order."""
        fresh = []
        for place, file in enumerate(self._files):
            stamp = _stamp(file)
            if stamp == self._seen[place]:
                continue
            self._seen[place], spec = stamp, self.planned[place]
            self.ended.pop(spec.run_id, None)
            if stamp is not None and (found := _read(file.parent, spec)) is not None:
                self.ended[spec.run_id] = found
                fresh.append(found)
        return sorted(fresh, key=lambda run: run.ended)

    def take_back(self) -> dict[str, list[Path]]:
        """Count runs that may end otherwise now as not ended: why -> their records."""
        records = defaultdict(list)
        for spec, file in zip(self.planned, self._files, strict=True):
            run = self.ended.get(spec.run_id)
            if run is not None and (why := run.may_end_otherwise()) is not None:
                records[why].append(file)
                del self.ended[spec.run_id]
        return records

    def set_aside(self) -> list[Path]:
        """Rename records that a disk has emptied or cut, so that their runs are made again.

        Returns their new names. Snakemake knows a record by its name alone.
        """
        kept = []
        for spec, file in zip(self.planned, self._files, strict=True):
            if spec.run_id not in self.ended and _is_damaged(file):
                kept.append(file.replace(file.with_name(f"{file.name}.damaged")))
        return kept

    def seconds_left(self) -> float | None:
        """Wall time until the last planned run ends; None before any run has ended.

        A run is expected to take what runs of its cell and node count took in the median, or else
        all runs; the last runs tell how much passes besides, and how many are made at once.
        """
        if not self.ended:
            return None
        took: dict[tuple[str, int], list[float]] = defaultdict(list)
        for run in self.ended.values():
            took[run.spec.cell, run.spec.world.nodes].append(run.ended - run.started)
        of_any = statistics.median(time for times in took.values() for time in times)
        left = [run for run in self.planned if run.run_id not in self.ended]
        places = [(run.cell, run.world.nodes) for run in left]
        expected = sum(statistics.median(took[p]) if p in took else of_any for p in places)
        # Wall time of the last runs over the sum of their own: jobs cost time, several save some.
        lately: list[Ended] = []
        for run in sorted(self.ended.values(), key=lambda one: one.ended, reverse=True)[:_LATELY]:
            if lately and lately[-1].started - run.ended > _PAUSE_SECONDS:
                break
            lately.append(run)
        own = sum(run.ended - run.started for run in lately)
        passed = max(run.ended for run in lately) - min(run.started for run in lately)
        return expected * (passed / own if own else 1.0)

    def phase(self) -> str | None:
        """Work under way before the first run or after the last; None in between."""
        if not self.ended:
            if not (self.results / "tokens/manifest.json").exists():
                return "cutting the text into tokens"
            if self.study.cluster.yardstick and not (self.results / "yardstick.json").exists():
                return "measuring the speed of this machine"
        if any(run.run_id not in self.ended for run in self.planned):
            return None
        newest = max((run.ended for run in self.ended.values()), default=0.0)
        for name, pattern in _PRODUCTS:
            stamps = [stamp for path in self.results.glob(pattern) if (stamp := _stamp(path))]
            times = [stamp[0] / 1e9 for stamp in stamps]
            if not times or min(times) < newest:
                return f"making the {name}"
            if name == "metrics":  # all the others are made from it, some at the same time
                newest = max(times)
        return None


def medians(ended: Iterable[Ended]) -> dict[tuple[str, int], float]:
    """(cell, nodes) -> the median over its runs of their step times, in seconds."""
    found: dict[tuple[str, int], list[float]] = defaultdict(list)
    for run in ended:
        if run.step_seconds is not None:
            found[run.spec.cell, run.spec.world.nodes].append(run.step_seconds)
    return {place: statistics.median(values) for place, values in found.items()}


def _stamp(path: Path) -> tuple[int, int] | None:
    """When the file was written, in nanoseconds, and its size; None where it is not there."""
    try:
        about = path.stat()
    except OSError:
        return None
    return about.st_mtime_ns, about.st_size


def _read(folder: Path, spec: RunSpec) -> Ended | None:
    """The run of a record; None where that is damaged or of another training, as it is repeated."""
    try:
        run: dict[str, Any] = read_made(folder / RUN_FILE, "", RecordError, "snakemake")
        if RunSpec.from_dict(run["spec"]).identity() != spec.identity():
            return None
        start, end = (
            datetime.fromisoformat(run[key]).timestamp() for key in ("started_at", "ended_at")
        )
        status = str(run["status"])
        timed = status == "ok" and spec.kind == TIMED
        slowest: dict[int, float] = {}
        for _, line in read_lines(folder / STEPS_FILE, "", RecordError) if timed else ():
            if line["timed"]:
                slowest[line["step"]] = max(line["seconds"], slowest.get(line["step"], 0.0))
        seconds = statistics.median(slowest.values()) if timed else None
        return Ended(spec, status, start, end, seconds, run.get("reason"))
    except (RecordError, StudyError, LookupError, AttributeError, TypeError, ValueError):
        return None


def _is_damaged(file: Path) -> bool:
    """True where a record is there and is no JSON, or is of steps that are not there any more.

    Raises OSError where it cannot be read, which says nothing of what it holds.
    """
    if not file.is_file():
        return False
    content = file.read_bytes()
    try:
        run = parse(content.decode(), str(file), RecordError)
    except (RecordError, UnicodeDecodeError):
        return True
    steps = file.with_name(STEPS_FILE)
    is_ok = isinstance(run, dict) and run.get("status") == "ok"
    return is_ok and not (steps.is_file() and steps.stat().st_size)
