"""A part of a run that a preloaded process does; where that does not answer, this one does it.

    python -m pipeline.launch.start emulated --spec FILE --tokens DIR --out DIR

The words after the first are those of the program that it stands for, see `PROGRAMS`. A module of
its own: who asks the preloaded process must not import what that process has.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

from pipeline.launch import preloaded
from pipeline.machine.processes import die_with_parent, end_as

PROGRAMS = {
    preloaded.EMULATED: "pipeline.launch.emulated.build",
    preloaded.TORCHRUN: "torch.distributed.run",
    preloaded.RANK: "pipeline.training.worker",
}
"""What is asked for -> the module that is it."""


def words(what: str, *, loaded: bool) -> tuple[str, ...]:
    """What follows `python` to start it; `loaded`: by a preloaded process."""
    return ("-m", "pipeline.launch.start", what) if loaded else ("-m", PROGRAMS[what])


def main() -> None:
    """Have a preloaded process do it, and end as it ended."""
    what, *options = sys.argv[1:]
    die_with_parent()
    # Passed on, so that whoever is ended says so.
    signal.signal(signal.SIGTERM, _interrupt)
    code = preloaded.ask(what, options)
    if code is None:
        os.execv(  # noqa: S606, our own words
            sys.executable, [sys.executable, *words(what, loaded=False), *options]
        )
    end_as(code)


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt(f"by signal {signum}")


if __name__ == "__main__":
    main()
