"""Every run of a study as the page lists it: its outcome, where it ran, the end of its log."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
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
from pipeline.metrics.select import pick, records
from pipeline.records import RunRecord
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
    step_time: str
    resumed: str
    hosts: str
    as_root: str
    image: str
    log: tuple[str, ...]
    log_note: str
    has_steps: bool


def run_rows(study: Study, table: pd.DataFrame, runs: Path) -> list[RunRow]:
    """One row for every run that the study calls for, in its order; profiled ones have no time.

    Raises RecordError on a missing or unfit record, SamestepError where the metrics are of others.
    """
    labels = {
        row["run_id"]: row["label"]
        for level in LEVELS
        for row in records(pick(table, level, "status"))
    }
    times = {row["run_id"]: row for row in records(pick(table, "run", "step_seconds"))}
    found = collect_every(study, runs)
    for record in found:
        if record.spec.run_id not in labels:
            raise SamestepError(
                f"the metrics hold no run {record.spec.run_id}; run `python -m pipeline metrics` "
                "again"
            )
    return [_row(record, labels, times, runs) for record in found]


@dataclass(frozen=True)
class RunGroup:
    """The runs of one cell at one number of nodes.

    `seconds` is the median of their medians, None where none has one; `milliseconds` is its text.
    """

    label: str
    nodes: int
    counts: list[tuple[str, int]]
    seconds: float | None
    milliseconds: str
    exceptions: bool
    runs: list[RunRow]


def groups_of(rows: Sequence[RunRow]) -> list[RunGroup]:
    """The runs by cell and nodes, those with an exception first, else in the order of the study."""
    found: dict[tuple[str, int], list[RunRow]] = {}
    for row in rows:
        found.setdefault((row.label, row.nodes), []).append(row)
    groups = []
    for (label, nodes), runs in found.items():
        times = [run.seconds for run in runs if run.seconds is not None]
        seconds = median(times) if times else None
        groups.append(RunGroup(
            label=label,
            nodes=nodes,
            counts=list(Counter(run.status for run in runs).items()),
            seconds=seconds,
            milliseconds="" if seconds is None else significant(1000 * seconds),
            exceptions=any(run.status != "ok" for run in runs),
            runs=sorted(runs, key=lambda run: run.status == "ok"),
        ))  # fmt: skip
    return sorted(groups, key=lambda group: not group.exceptions)


def _row(
    record: RunRecord, labels: Mapping[str, str], times: Mapping[str, dict[str, Any]], runs: Path
) -> RunRow:
    spec, execution = record.spec, record.run["execution"]
    time = times.get(spec.run_id)
    lines, note = log_end(run_folder(runs, spec) / "log.txt")
    return RunRow(
        name=spec.run_id.partition("/")[2],
        label=labels[spec.run_id],
        nodes=spec.world.nodes,
        repeat=str(spec.repeat) if spec.kind == TIMED else spec.kind,
        status=record.status,
        reason=tidy(record.run["reason"] or ""),
        seconds=None if time is None else float(time["value"]),
        step_time=NONE if time is None else significant(1000 * float(time["value"])),
        resumed=_resumed(execution.get("resumed_from_step")),
        hosts=str(execution.get("num_hosts", NONE)),
        as_root={True: "yes", False: "no", None: NONE}[execution.get("as_root")],
        # The first 12 characters of a digest, without the name of its algorithm.
        image=(record.run["provenance"]["image_digest"] or "none").removeprefix("sha256:")[:12],
        log=lines,
        log_note=note,
        has_steps=bool(record.steps),
    )


def _resumed(step: int | None) -> str:
    if step is None:
        return NONE
    return f"from step {step}" if step else "no"


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
