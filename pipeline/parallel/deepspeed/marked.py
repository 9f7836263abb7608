"""DeepSpeed's collectives as phases of a step: timed in profiled runs, stretched in dilated time.

All its collectives pass through one object, `deepspeed.comm.comm.cdb`, a thin layer over torch's.
"""

from __future__ import annotations

import sys
from typing import Any

from pipeline.parallel.types import NOT_PROFILED, Phases
from pipeline.study.profiling import COMMUNICATION

COLLECTIVES = frozenset({
    "all_gather", "all_gather_coalesced", "all_gather_into_tensor", "all_reduce",
    "all_reduce_coalesced", "barrier", "broadcast", "reduce", "reduce_scatter",
    "reduce_scatter_tensor",
})  # fmt: skip
"""Methods of that object which ZeRO calls in a step and which send."""


def mark(phases: Phases) -> None:
    """Tell `phases` of every collective from now on; nothing where nobody listens."""
    if phases is not NOT_PROFILED:
        module: Any = sys.modules["deepspeed.comm.comm"]
        module.cdb = Marked(module.cdb, phases)


class Marked:
    """A backend of DeepSpeed, whose collectives are phases of communication."""

    def __init__(self, backend: Any, phases: Phases) -> None:
        self._backend, self._phases = backend, phases

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._backend, name)
        if name not in COLLECTIVES:
            return found

        def call(*args: Any, **named: Any) -> Any:
            with self._phases.during(COMMUNICATION):
                handle = found(*args, **named)
            return _Work(handle, self._phases) if hasattr(handle, "wait") else handle

        return call


class _Work:
    """A collective under way: to wait for it is communication too."""

    def __init__(self, work: Any, phases: Phases) -> None:
        self._work, self._phases = work, phases

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)

    def wait(self, *args: Any, **named: Any) -> Any:
        """Wait as the work itself does."""
        with self._phases.during(COMMUNICATION):
            return self._work.wait(*args, **named)
