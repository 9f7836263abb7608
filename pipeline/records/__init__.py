"""Run records on disk: `run.json` and `steps.jsonl` in the folder of a run.

Both are validated by their JSON Schema when written and when read, and held against `rules`.
`write_record` writes the steps first and `run.json` last, each under a temporary name, so a folder
with a `run.json` is complete.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pipeline.documents import read_document, read_lines
from pipeline.errors import RecordError, StudyError
from pipeline.files import write_text
from pipeline.records.rules import contradiction
from pipeline.schemas import AGAIN, validate
from pipeline.study.spec import RunSpec

RUN_FILE, STEPS_FILE = "run.json", "steps.jsonl"
_AGAIN = AGAIN["record"]


@dataclass(frozen=True)
class Step:
    """One optimiser step as one rank saw it.

    `seconds` is wall time, `loss` the mean over the global batch in nats per token, `grad_norm`
    the L2 norm of the global mean gradient before clipping; both are None when not finite.
    `phases` says what the seconds went to, in a profiled run only; `cpu_seconds` and, on emulated
    nodes, `cpu_phases` are the CPU time of the thread that computes. `passes` are those of a
    profiled pipeline in their order on this rank: kind, stage, micro-batch, seconds of computation.
    `squares` are, in a profiled run, this rank's shares of the squares of each block's gradient.
    """

    step: int
    rank: int
    seconds: float
    tokens: int
    loss: float | None
    grad_norm: float | None
    learning_rate: float
    timed: bool
    phases: Mapping[str, float] | None = None
    cpu_seconds: float | None = None
    cpu_phases: Mapping[str, float] | None = None
    passes: Sequence[Sequence[Any]] | None = None
    squares: Mapping[str, float] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types, a line of steps.jsonl; what is not known is left out."""
        known = ("loss", "grad_norm")  # None where not finite
        return {k: v for k, v in vars(self).items() if v is not None or k in known}


@dataclass(frozen=True)
class RunRecord:
    """The record of one run: `run` is the content of run.json, `steps` of steps.jsonl."""

    run: Mapping[str, Any]
    steps: Sequence[Step]

    @cached_property
    def spec(self) -> RunSpec:
        """The spec that the run was started with."""
        return RunSpec.from_dict(self.run["spec"])

    @cached_property
    def step_text(self) -> str:
        """The content of steps.jsonl: a line for each step of each rank."""
        return "".join(json.dumps(step.to_dict()) + "\n" for step in self.steps)

    @property
    def steps_sha256(self) -> str:
        """Hash of that text."""
        return hashlib.sha256(self.step_text.encode()).hexdigest()

    @property
    def status(self) -> str:
        """`ok`, `oom`, `unsupported`, `failed` or `timeout`."""
        return str(self.run["status"])


def write_record(folder: Path, record: RunRecord) -> None:
    """Validate and write both files below `folder`; raises RecordError, writes nothing invalid.

    run.json gets the hash of the steps that it is written with.
    """
    bound = RunRecord({**record.run, "steps_sha256": record.steps_sha256}, record.steps)
    validate(bound.run, "record", folder / RUN_FILE)
    for number, step in enumerate(bound.steps, 1):
        validate(step.to_dict(), "step", f"{folder / STEPS_FILE}:{number}")
    _check(bound, folder)
    # run.json comes last: it says that the record is whole.
    for name, text in texts(bound).items():
        write_text(folder / name, text)


def texts(record: RunRecord) -> dict[str, str]:
    """File name -> content of a record as it is written; ASCII, so a letter is a byte."""
    run = json.dumps(record.run, indent=1, allow_nan=False) + "\n"
    return {STEPS_FILE: record.step_text, RUN_FILE: run}


def read_record(folder: Path) -> RunRecord:
    """Read and validate the record in `folder`; raises RecordError naming file, path and rule."""
    run = _load(folder / RUN_FILE)
    validate(run, "record", folder / RUN_FILE)
    path, spec = folder / STEPS_FILE, run["spec"]
    world, steps = spec["world"], list[Step]()
    most = spec["workload"]["steps"] * world["nodes"] * world["ranks_per_node"]
    # A line that is none, or one too many, ends the reading there.
    for number, line in read_lines(path, RecordError, _AGAIN) if path.exists() else ():
        if number > most:
            raise RecordError(f"{path}: over {most} lines, the steps of all ranks; {_AGAIN}")
        validate(line, "step", f"{path}:{number}")
        steps.append(Step(**line))
    record = RunRecord(run, steps)
    _check(record, folder)
    return record


def spec_to_write(spec: RunSpec, folder: Path) -> RunSpec:
    """The spec that belongs into a run's folder: that of the record there, where it stands.

    A record stands for every spec of the same training, but not where the run was out of time and
    `spec` gives it more. So a time limit that was raised repeats the runs that ended by it alone.
    """
    try:
        run = _load(folder / RUN_FILE)
        own, status = RunSpec.from_dict(run["spec"]), run["status"]
    except (RecordError, KeyError, TypeError, StudyError):
        return spec
    out_of_time = status == "timeout" and own.timeout_seconds < spec.timeout_seconds
    return spec if out_of_time or own.identity() != spec.identity() else own


def _check(record: RunRecord, folder: Path) -> None:
    """Raise RecordError for what a schema cannot say."""
    if (line := contradiction(record)) is not None:
        # A record may hold any text in place of a short one.
        raise RecordError(f"{folder}/{line[:400]}; {_AGAIN}")


def _load(path: Path) -> Any:
    # What an old record says of a failure may hold what a library coloured; see `rules.texts`.
    return read_document(path, "", RecordError, _AGAIN, printable=False)
