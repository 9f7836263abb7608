"""Progress of a run from rank 0's step file: a line every few seconds.

What emulated nodes wait for before the first step is told at once.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from pathlib import Path

from pipeline.emulation import NOTE
from pipeline.study.spec import RunSpec
from pipeline.training.step_files import ROW, seconds_of

SECONDS_BETWEEN_LINES = 5.0


class Progress:
    """Call `update` now and then; it reads what is new in rank 0's step file."""

    def __init__(self, spec: RunSpec, steps_file: Path) -> None:
        self.spec, self.steps_file = spec, steps_file
        self._offset, self._done, self._seconds = 0, 0, 0.0
        self._inode: int | None = None
        self._note = ""
        self._last_line = time.monotonic()

    def update(self) -> None:
        """Show the steps done, tokens per second and the time left, or what is waited for."""
        with suppress(FileNotFoundError):
            note = self.steps_file.with_name(NOTE).read_text(encoding="utf-8")
            if note != self._note:
                self._note = note
                print(f"{self.spec.run_id}: {note}", file=sys.stderr, flush=True)
        fresh = self._read()
        self._done += len(fresh)
        self._seconds += sum(fresh)
        if not self._done or time.monotonic() - self._last_line < SECONDS_BETWEEN_LINES:
            return
        self._last_line = time.monotonic()
        total = self.spec.workload.steps
        tokens = sum(
            phase.global_batch_tokens * min(max(0, self._done - first), phase.workload.steps)
            for first, phase in self.spec.phases()
        )
        rate = tokens / self._seconds
        left = self._seconds / self._done * (total - self._done)
        print(
            f"{self.spec.run_id}: step {self._done}/{total}, {rate:,.0f} tokens/s, {left:.0f} s "
            "left",
            file=sys.stderr,
            flush=True,
        )

    def _read(self) -> list[float]:
        """Seconds of the steps that are new in the file."""
        if not self.steps_file.is_file():
            return []
        with self.steps_file.open("rb") as stream:
            inode = os.fstat(stream.fileno()).st_ino
            if inode != self._inode:
                # The rank has replaced the file that an earlier start left.
                self._inode, self._offset, self._done, self._seconds = inode, 0, 0, 0.0
            stream.seek(self._offset)
            rows = stream.read()
        whole = rows[: len(rows) // ROW.size * ROW.size]
        self._offset += len(whole)
        return seconds_of(whole)
