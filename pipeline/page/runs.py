"""Every run of a study as the page lists it: its outcome, where it ran, the end of its log."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd

from pipeline.errors import SamestepError
from pipeline.files import open_regular
from pipeline.metrics.collect import collect_every, run_folder
from pipeline.metrics.counts import LEVELS
from pipeline.metrics.format import NONE, significant
from pipeline.metrics.select import pick
from pipeline.study.spec import TIMED
from pipeline.study.study import Study

LOG_LINES = 20
_TAIL_BYTES, _LINE_LETTERS = 2**16, 400
# Sequences that colour a terminal, then what no page can show.
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ufffe\uffff]")
# A path of more than three parts, of which the first ones only say where a checkout was.
_LONG_PATH = re.compile(r"(?<![\w.:/-])/(?:[^\s/:\"'<>|]+/)+((?:[^\s/:\"'<>|]+/){2}[^\s/:\"'<>|]+)")


@dataclass(frozen=True)
class RunRow:
    """One run; texts are ready to be shown, `seconds` is the median step time or None.

    `log` holds the last lines, none where there is no log or an empty one, and `log_note` says
    what it is.
    """

    name: str
    label: str
    nodes: int
    repeat: str
    status: str
    reason: str
    seconds: float | None
    log: tuple[str, ...]
    log_note: str
    has_steps: bool

    @property
    def step_time(self) -> str:
        """Milliseconds, or a dash."""
        return NONE if self.seconds is None else significant(1000 * self.seconds)


def run_rows(study: Study, table: pd.DataFrame, runs: Path) -> list[RunRow]:
    """One row for every run that the study calls for, in its order; profiled ones have no time.

    Raises RecordError on a missing or unfit record, SamestepError where the metrics are of others.
    """
    status = pd.concat([pick(table, level, "status") for level in LEVELS])
    labels = dict(zip(status["run_id"], status["label"], strict=True))
    times = pick(table, "run", "step_seconds").set_index("run_id")["value"]
    found = []
    for record in collect_every(study, runs):
        spec = record.spec
        if spec.run_id not in labels:
            raise SamestepError(
                f"the metrics hold no run {spec.run_id}; run `python -m pipeline metrics` again"
            )
        step = record.run["execution"].get("resumed_from_step")
        resumed = f"resumed from step {step}" if step else ""
        log, note = log_end(run_folder(runs, spec) / "log.txt")
        found.append(RunRow(
            name=spec.run_id.partition("/")[2],
            label=labels[spec.run_id],
            nodes=spec.world.nodes,
            repeat=str(spec.repeat) if spec.kind == TIMED else spec.kind,
            status=record.status,
            reason="; ".join(filter(None, [tidy(record.run["reason"] or ""), resumed])),
            seconds=times.get(spec.run_id),
            log=log,
            log_note=note,
            has_steps=bool(record.steps),
        ))  # fmt: skip
    return found


def groups_of(rows: Sequence[RunRow]) -> list[dict[str, Any]]:
    """The runs of each cell at each number of nodes, those with an exception first.

    `seconds` is the median of their medians, None where none has one; `milliseconds` is its text.
    """
    found: dict[tuple[str, int], list[RunRow]] = {}
    for row in rows:
        found.setdefault((row.label, row.nodes), []).append(row)
    groups = []
    for (label, nodes), runs in found.items():
        times = [run.seconds for run in runs if run.seconds is not None]
        seconds = median(times) if times else None
        groups.append({
            "label": label,
            "nodes": nodes,
            "counts": list(Counter(run.status for run in runs).items()),
            "seconds": seconds,
            "milliseconds": "" if seconds is None else significant(1000 * seconds),
            "exceptions": any(run.status != "ok" for run in runs),
            "runs": sorted(runs, key=lambda run: run.status == "ok"),
        })  # fmt: skip
    return sorted(groups, key=lambda group: not group["exceptions"])


def log_end(path: Path) -> tuple[tuple[str, ...], str]:
    """The last lines of a log, fit to be shown, and one line that says what they are."""
    try:
        with open_regular(path) as stream:
            stream.seek(max(path.stat().st_size - _TAIL_BYTES, 0))
            text = stream.read().decode("utf-8", errors="replace")
    except FileNotFoundError:
        return (), "No log: the run folder holds no log.txt."
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        return (), "The log is empty."
    shown = tuple(tidy(line) for line in lines[-LOG_LINES:])
    return shown, "The end of the log" if len(lines) > LOG_LINES else "The log"


def tidy(line: str) -> str:
    """`line` without control characters and the folders that a path began with, and cut to length.

    So the page says the same wherever the checkout lies; the log itself keeps everything.
    """
    plain = _LONG_PATH.sub(r".../\1", _CONTROLS.sub("", _ESCAPES.sub("", line)))
    return plain if len(plain) <= _LINE_LETTERS else f"{plain[:_LINE_LETTERS]} ..."
