"""Is any part of a step, in dilated time, shorter than the CPU seconds that were spent in it?

A node of one core cannot compute for longer than it takes. Where dilated time says so, the node was
faster than the machine that it stands for.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pipeline.records import RunRecord

LEAST_SECONDS = 1e-4
"""CPU seconds from which on a phase counts: reading two clocks takes some microseconds."""


@dataclass
class Parts:
    """Parts of steps of one kind; `least` is the smallest time over CPU seconds."""

    number: int = 0
    shorter: int = 0
    least: float = float("inf")

    def add(self, seconds: float, cpu_seconds: float) -> None:
        """Count one part that took so long in dilated time."""
        self.number += 1
        self.shorter += seconds < cpu_seconds
        self.least = min(self.least, seconds / cpu_seconds)

    def told(self) -> dict[str, Any]:
        """These counts for the results file; `least` is null where nothing was counted."""
        return vars(self) | {"least": self.least if self.number else None}


@dataclass
class Tally:
    """All steps of all ranks of the runs that were added, and the phases of the profiled ones."""

    runs: int = 0
    steps: Parts = field(default_factory=Parts)
    phases: Parts = field(default_factory=Parts)

    def add(self, record: RunRecord) -> None:
        """Count what one run recorded, its untimed steps too."""
        self.runs += 1
        for step in record.steps:
            if step.cpu_seconds:
                self.steps.add(step.seconds, step.cpu_seconds)
            for phase, cpu_seconds in (step.cpu_phases or {}).items():
                if step.phases and cpu_seconds >= LEAST_SECONDS:
                    self.phases.add(step.phases[phase], cpu_seconds)

    def told(self) -> dict[str, Any]:
        """All counts for the results file."""
        return {"runs": self.runs, "steps": self.steps.told(), "phases": self.phases.told()}
