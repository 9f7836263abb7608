"""Processes that have loaded what a run needs and fork it, which takes longer than a small run.

Snakemake's main process starts them and they end with it: one that has the stage `train` (0.4 to
0.5 CPU seconds), without torch, and one with torch for each number of threads that ranks of the
study have. The nodes of an emulated run, torchrun and each of its ranks are forks of the latter.
Where none answers, each loads for itself and is otherwise the same. Only for runs on this machine,
outside of a container image; a stage outlives the end of the process that its ranks are forks of,
and starts the run again.

    python -m pipeline.launch.preloaded serve-stages NAME
    python -m pipeline.launch.preloaded serve-ranks MODEL... NAME      (a model's spec in JSON)
    python -m pipeline.launch.preloaded emulated|torchrun|rank OPTIONS   (asks, else does it itself)

The client imports few modules: heavy ones are imported where they are used.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING

from pipeline.launch import fork_server
from pipeline.machine import inherited
from pipeline.machine.processes import die_with_parent, end_as, exit_status, interrupt_on_sigterm

if TYPE_CHECKING:
    from pipeline.resolved import ResolvedRun

STAGES = "SAMESTEP_WAITING"
"""Names the socket of the process with the stage, in the environment of Snakemake's jobs."""

RANKS = "SAMESTEP_PRELOADED"
"""Names that of a process with torch; a number of threads follows."""

EMULATED, TORCHRUN, RANK = "emulated", "torchrun", "rank"
PROGRAMS = {
    EMULATED: "pipeline.launch.emulated.build",
    TORCHRUN: "torch.distributed.run",
    RANK: "pipeline.training.worker",
}
"""Role of a process with torch -> the module that plays it."""

_MODULE = "pipeline.launch.preloaded"


def start_stages() -> None:
    """Start the process with the stage, and name it to the jobs of this one."""
    stage = inherited.for_stages(os.environ)
    fork_server.start((_MODULE, "serve-stages"), STAGES, stage)


def start_ranks(runs: Iterable[ResolvedRun], of_site: Mapping[str, str] | None = None) -> None:
    """Start and name the processes with torch for these runs; `of_site`: the site's variables."""
    from pipeline.machine.control_groups import usable_cores

    cores = len(usable_cores())
    alone = [run for run in runs if run.spec.world.num_machines == 1]
    wanted = {run.threads_on(cores): run.spec.environment for run in alone}
    models = {json.dumps(asdict(run.spec.model), sort_keys=True) for run in alone}
    for threads, environment in sorted(wanted.items()):
        settings = {**(of_site or {}), **environment, **inherited.threads(threads)}
        # Libraries read some of it as they are loaded, so it is that of the ranks, and no more.
        rank = inherited.for_ranks(os.environ, settings)
        words = (_MODULE, "serve-ranks", *sorted(models))
        fork_server.start(words, variable(threads), rank)


def variable(threads: int | str) -> str:
    """The environment variable that names the process for so many threads."""
    return f"{RANKS}_{threads}"


def words(what: str, *, loaded: bool) -> tuple[str, ...]:
    """Words after `python` that start a program; `loaded`: by a preloaded process."""
    return ("-m", _MODULE, what) if loaded else ("-m", PROGRAMS[what])


def ask_stage(arguments: Sequence[str]) -> int | None:
    """Have `python -m pipeline ARGUMENTS` done; its exit status, None to do it here."""
    try:
        return fork_server.ask(STAGES, arguments)
    except ConnectionError as error:
        print(f"{error}; the stage is started again", file=sys.stderr)
        return None


def ask(what: str, arguments: Sequence[str]) -> int | None:
    """Have one of `PROGRAMS` done; its exit status, None where no fit process answers."""
    name = variable(os.environ.get("OMP_NUM_THREADS", "1"))
    try:
        return fork_server.ask(name, [what, *arguments], again=what == TORCHRUN)
    except ConnectionError as error:
        print(error, file=sys.stderr)
        return exit_status(-signal.SIGKILL)  # nothing else ends them so


def load_stages() -> fork_server.Work:
    """Entry of `python -m pipeline`, with all that a run's stage imports loaded."""
    from pipeline.launch import run  # noqa: F401
    from pipeline.machine import session

    session.begin()
    # The command line is above this layer, and is found by its name as `python -m` finds it.
    return importlib.import_module("pipeline.__main__").program  # type: ignore[no-any-return]


def load_ranks(models: Iterable[str]) -> fork_server.Work:
    """Entry of a process with torch, with all that it imports for these models loaded."""
    # A process that has asked CUDA for its GPUs cannot fork ranks that use one; NVML may be asked.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    import torch.distributed.run

    from pipeline.launch.emulated.build import run_here
    from pipeline.machine import session
    from pipeline.study.spec import ModelSpec
    from pipeline.training import worker

    session.begin()
    worker.import_heavy(ModelSpec(**json.loads(model)) for model in models)

    def torchrun() -> int:
        torch.distributed.run.main()  # raises where a rank failed
        return 0

    parts = {EMULATED: run_here, TORCHRUN: torchrun, RANK: worker.main}
    return lambda: parts[sys.argv.pop(1)]()


def main() -> None:
    """Serve, or have a preloaded process do what is asked and end as it ended."""
    what, *options = sys.argv[1:]
    die_with_parent()
    if what == "serve-stages":
        fork_server.serve(options[0], load_stages)
    if what == "serve-ranks":
        *models, name = options
        fork_server.serve(name, partial(load_ranks, models), [*inherited.stated(os.environ)])
    interrupt_on_sigterm()  # passed on, so that whoever is ended says so
    if (code := ask(what, options)) is None:
        command = [sys.executable, *words(what, loaded=False), *options]
        os.execv(sys.executable, command)  # noqa: S606, our own words
    end_as(code)


if __name__ == "__main__":
    main()
