"""Files in which ranks keep their steps until the record is made: one binary row per step.

`rank<r>.steps` holds rows of `ROW`, in the order of the steps. Their size is fixed and each has a
CRC-32, so a tail that a kill cut off, a block of zeros that a node without power left, and a row of
another rank are all found. In a profiled run `rank<r>.profile.jsonl` holds the phases of each step.

Rows and not lines of JSON: 512 ranks that take 100,000 steps would write about 11 GB of lines to
the shared folder, one write per step; of rows it is 2.9 GB, in about one write per second. Every
rank keeps loss and norm of its own, although they are global: that all agree is a rule of records.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from struct import Struct
from typing import Any, TextIO
from zlib import crc32

from pipeline.errors import LaunchError
from pipeline.files import atomic_path, whole_lines, write_text
from pipeline.records import Step

ROW = Struct("<IIQ5d?")
"""CRC-32, step, tokens, seconds, CPU seconds, loss, gradient norm, learning rate, timed.

Little-endian and without padding. A loss or norm that is not finite is a NaN. The CRC-32 is that of
the rest of the row, and starts from the number of the rank.
"""

CRC_BYTES = 4

FLUSH_SECONDS = 1.0
"""Rows of ranks other than 0 may stay in memory for so long, unless a checkpoint needs them."""

_OF_A_PROFILE = ("phases", "cpu_phases", "passes", "squares")


def path_of(folder: Path, rank: int) -> Path:
    """The rows of a rank."""
    return folder / f"rank{rank}.steps"


def is_one(path: Path) -> bool:
    """True for a file in the folder of the ranks that a `StepFile` keeps."""
    return path.match("rank*.steps") or path.match("rank*.profile.jsonl")


class StepFile:
    """The rows of one rank, open for those that follow; a context manager that closes them.

    It begins with the `done` steps of a checkpoint, and drops what an earlier start wrote after
    them. Raises LaunchError where the file has fewer.
    """

    def __init__(self, folder: Path, rank: int, done: int = 0) -> None:
        self._rank, self._path, self._profile = rank, path_of(folder, rank), _profile(folder, rank)
        self._flushed = time.monotonic()
        if (count := whole_steps(folder, rank, done)) < done:
            raise LaunchError(
                f"{self._path.name} has {count} of the checkpoint's {done} steps as this node sees "
                "it; start the run again"
            )
        kept = self._path.read_bytes()[: done * ROW.size] if done else b""
        # A new file: a rank of an earlier start that is still alive writes into the old one.
        with atomic_path(self._path) as temporary:
            temporary.write_bytes(kept)
        if self._profile.is_file():
            write_text(self._profile, "".join(whole_lines(self._profile)[:done]))
        self._stream = self._path.open("ab")
        self._lines: TextIO | None = None

    def write(self, step: Step) -> None:
        """Append a step; rank 0's is seen by others at once, since progress is read from it."""
        self._stream.write(packed(step))
        if step.phases is not None:
            self._lines = self._lines or self._profile.open("a", encoding="utf-8")
            about = {name: getattr(step, name) for name in _OF_A_PROFILE}
            self._lines.write(json.dumps(about) + "\n")
            self._lines.flush()
        if self._rank == 0 or time.monotonic() - self._flushed > FLUSH_SECONDS:
            self._stream.flush()
            self._flushed = time.monotonic()

    def to_disk(self) -> None:
        """Wait until all rows are on the disk: a checkpoint is good for nothing without them."""
        for stream in (self._stream, self._lines):
            if stream is not None:
                stream.flush()
                os.fsync(stream.fileno())

    def __enter__(self) -> StepFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()
        if self._lines is not None:
            self._lines.close()


def packed(step: Step) -> bytes:
    """The row of a step."""
    loss, norm, cpu = (
        math.nan if value is None else value
        for value in (step.loss, step.grad_norm, step.cpu_seconds)
    )
    own = step.step, step.tokens, step.seconds, cpu, loss, norm, step.learning_rate, step.timed
    return ROW.pack(crc32(ROW.pack(0, *own)[CRC_BYTES:], step.rank), *own)


def read_steps(folder: Path) -> list[Step]:
    """The steps of all ranks, by step and rank; those of a rank end where its file is damaged."""
    steps: list[Step] = []
    for path in folder.glob("rank*.steps"):
        rank = int(path.stem.removeprefix("rank"))
        rows = []
        for _, step, tokens, seconds, *numbers, rate, timed in _rows(path.read_bytes(), rank):
            cpu, loss, norm = (value if math.isfinite(value) else None for value in numbers)
            rows.append(Step(step, rank, seconds, tokens, loss, norm, rate, timed, cpu_seconds=cpu))
        # Files end early of a failed run alone: elsewhere a step that is missing is an error.
        if _profile(folder, rank).is_file():
            profiles = list[dict[str, Any]]()
            with suppress(ValueError, TypeError, RecursionError):  # up to a damaged line
                for line in whole_lines(_profile(folder, rank)):
                    profiles.append(dict(json.loads(line)))
            rows = [replace(step, **about) for step, about in zip(rows, profiles, strict=False)]
        steps += rows
    return sorted(steps, key=lambda step: (step.step, step.rank))


def whole_steps(folder: Path, rank: int, most: int) -> int:
    """Number of rows of a rank's file, at most `most`, that are its steps from 0 on."""
    try:
        content = path_of(folder, rank).read_bytes()[: most * ROW.size]
    except OSError:
        return 0
    return sum(1 for _ in _rows(content, rank))


def seconds_of(rows: bytes) -> list[float]:
    """Seconds of the steps in whole rows, of whatever rank."""
    return [float(row[3]) for row in ROW.iter_unpack(rows)]


def _rows(content: bytes, rank: int) -> Iterator[tuple[Any, ...]]:
    """The rows from step 0 on, up to the first that is cut off, damaged or another step's."""
    for number in range(len(content) // ROW.size):
        row = content[number * ROW.size : (number + 1) * ROW.size]
        values = ROW.unpack(row)
        if values[:2] != (crc32(row[CRC_BYTES:], rank), number):
            return
        yield values


def _profile(folder: Path, rank: int) -> Path:
    return folder / f"rank{rank}.profile.jsonl"
