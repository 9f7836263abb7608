"""A process that has torch loaded and forks runs: `python -m pipeline.launch.emulated.preloaded`.

Snakemake's main process starts one, which ends with it; each run on emulated nodes then is a fork
of it. Without one a run loads for itself and is otherwise the same.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence

from pipeline.launch import fork_server
from pipeline.machine import session
from pipeline.machine.processes import die_with_parent, exit_status
from pipeline.study.spec import RunSpec

VARIABLE = "SAMESTEP_PRELOADED"
"""Name of its socket, in the environment of Snakemake's jobs."""

READ_AT_LOAD = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def start(spec: RunSpec) -> None:
    """Start one for runs like this, and name it to the jobs of this process, with which it ends."""
    from pipeline import strategies
    from pipeline.launch.torchrun import threads_per_rank
    from pipeline.machine.facts import usable_cores

    layout = strategies.load(spec.strategy, spec.options).layout(spec.world)
    threads = threads_per_rank(spec, layout, usable_cores())
    settings = dict.fromkeys(READ_AT_LOAD, str(threads))
    fork_server.start("pipeline.launch.emulated.preloaded", VARIABLE, settings)


def ask(arguments: Sequence[str]) -> int | None:
    """Have the run done by the preloaded process; its exit status, None where there is no fit one.

    Inside a container image nobody is asked, as whoever could be is outside.
    """
    from pipeline.machine import image

    if not os.environ.get(VARIABLE) or image.digest_from_within() is not None:
        return None
    try:
        return fork_server.ask(VARIABLE, arguments)
    except ConnectionError as error:
        print(error, file=sys.stderr)
        return exit_status(-signal.SIGKILL)  # nothing else ends them so


def load() -> fork_server.Work:
    """What a run does, with all that it imports loaded."""
    from pipeline.launch.emulated.build import run_here
    from pipeline.training import worker

    session.begin()
    worker.import_heavy()
    return run_here


if __name__ == "__main__":
    die_with_parent()
    fork_server.serve(sys.argv[1], load, READ_AT_LOAD)
