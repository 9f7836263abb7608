"""Progress of a run from rank 0's step file: a line every few seconds.

What emulated nodes wait for before the first step is told at once.
"""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from pathlib import Path

from pipeline.emulation import NOTE
from pipeline.study.spec import RunSpec
from pipeline.training.step_files import ROW, seconds_of

SECONDS_BETWEEN_LINES = 5.0


class Progress:
    """Call `update` now and then; it reads rank 0's step file, whole: a step has 57 bytes there."""

    def __init__(self, spec: RunSpec, steps_file: Path) -> None:
        self.spec, self.steps_file = spec, steps_file
        self._note, self._last_line = "", time.monotonic()

    def update(self) -> None:
        """Show the steps done, tokens per second and the time left, or what is waited for."""
        with suppress(FileNotFoundError):
            note = self.steps_file.with_name(NOTE).read_text(encoding="utf-8")
            if note != self._note:
                self._note = note
                print(f"{self.spec.run_id}: {note}", file=sys.stderr, flush=True)
        if time.monotonic() - self._last_line < SECONDS_BETWEEN_LINES:
            return
        self._last_line = time.monotonic()
        with suppress(FileNotFoundError):
            rows = self.steps_file.read_bytes()
            # A row in the making has no end yet.
            took = seconds_of(rows[: len(rows) // ROW.size * ROW.size])
            if not (done := len(took)):
                return
            tokens = sum(
                phase.global_batch_tokens * min(max(0, done - first), phase.workload.steps)
                for first, phase in self.spec.phases()
            )
            total, seconds = self.spec.workload.steps, sum(took)
            rate, left = tokens / seconds, seconds / done * (total - done)
            text = f"step {done}/{total}, {rate:,.0f} tokens/s, {left:.0f} s left"
            print(f"{self.spec.run_id}: {text}", file=sys.stderr, flush=True)
