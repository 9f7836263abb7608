"""A process that has the stage `train` loaded and forks it: `python -m pipeline.launch.waiting`.

Snakemake's main process starts one, which ends with it. Python with the packages of the stage takes
0.4 to 0.5 CPU seconds to start, as many as a small run trains. Without one a stage loads for
itself. It imports no torch: a preloaded process for emulated nodes is another one, and a stage
outlives its end and starts the run again.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from pipeline.launch import fork_server
from pipeline.machine import session
from pipeline.machine.processes import die_with_parent

VARIABLE = "SAMESTEP_WAITING"
"""Name of its socket, in the environment of Snakemake's jobs."""


def start() -> None:
    """Start one, and name it to the jobs of this process, with which it ends."""
    fork_server.start("pipeline.launch.waiting", VARIABLE, {})


def ask(arguments: Sequence[str]) -> int | None:
    """Have `python -m pipeline ARGUMENTS` done; its exit status, None where it is to be done here.

    Where the waiting process or its guard was killed, so was the stage, and it is done again here.
    """
    try:
        return fork_server.ask(VARIABLE, arguments)
    except ConnectionError as error:
        print(f"{error}; the stage is started again", file=sys.stderr)
        return None


def load() -> fork_server.Work:
    """What `python -m pipeline` does, with all that a run's stage imports loaded."""
    from pipeline.launch import run  # noqa: F401

    session.begin()
    # The command line is above this layer, and is found by its name as `python -m` finds it.
    return importlib.import_module("pipeline.__main__").program  # type: ignore[no-any-return]


if __name__ == "__main__":
    die_with_parent()
    fork_server.serve(sys.argv[1], load)
