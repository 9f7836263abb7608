"""A process that has torch loaded and forks runs: `python -m pipeline.launch.preloaded`.

Snakemake's main process starts one for each number of threads that ranks of the study have; they
end with it. The nodes of an emulated run, torchrun and each of its ranks then are forks of it: to
load torch takes longer than a small run trains. Without one each loads for itself and is otherwise
the same. Only for runs on this machine, outside of a container image.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from pipeline.launch import fork_server
from pipeline.machine import inherited
from pipeline.machine.processes import die_with_parent, exit_status

if TYPE_CHECKING:  # who asks imports little
    from pipeline.study.spec import RunSpec

VARIABLE = "SAMESTEP_PRELOADED"
"""Name of its socket, in the environment of Snakemake's jobs; a number of threads follows."""

EMULATED, TORCHRUN, RANK = "emulated", "torchrun", "rank"
"""What one is asked to be: the nodes of an emulated run with their ranks, a launcher, a rank."""


def start(specs: Iterable[RunSpec]) -> None:
    """Start those that these runs use, and name them to the jobs of this process.

    They end with this process.
    """
    from pipeline import strategies
    from pipeline.launch.torchrun import threads_per_rank
    from pipeline.machine.facts import usable_cores

    cores, wanted = usable_cores(), dict[int, dict[str, str]]()
    for spec in specs:
        if spec.world.num_machines == 1:
            layout = strategies.load(spec.strategy, spec.options).layout(spec.world)
            count = threads_per_rank(spec, layout, cores)
            wanted[count] = {**spec.environment, **inherited.threads(count)}
    for threads, settings in sorted(wanted.items()):
        fork_server.start("pipeline.launch.preloaded", variable(threads), settings)


def variable(threads: int | str) -> str:
    """The environment variable that names the one for so many threads."""
    return f"{VARIABLE}_{threads}"


def is_named(spec: RunSpec, threads: int) -> bool:
    """Whether there is one for the ranks of this run; inside an image there is none."""
    from pipeline.machine import image

    if not os.environ.get(variable(threads)):
        return False
    return image.digest_from_within() is None


def ask(what: str, arguments: Sequence[str]) -> int | None:
    """Have the preloaded process do it; its exit status, None where there is no fit one."""
    name = variable(os.environ.get("OMP_NUM_THREADS", "1"))
    try:
        return fork_server.ask(name, [what, *arguments], again=what == TORCHRUN)
    except ConnectionError as error:
        print(error, file=sys.stderr)
        return exit_status(-signal.SIGKILL)  # nothing else ends them so


def load() -> fork_server.Work:
    """What it is asked to be, with all that is imported by it loaded."""
    # A process that has asked CUDA for its GPUs cannot fork ranks that use one; NVML may be asked.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    import torch.distributed.run

    from pipeline.launch.emulated.build import run_here
    from pipeline.machine import session
    from pipeline.training import worker

    session.begin()
    worker.import_heavy()

    def torchrun() -> int:
        torch.distributed.run.main()  # raises where a rank failed
        return 0

    parts = {EMULATED: run_here, TORCHRUN: torchrun, RANK: worker.main}
    return lambda: parts[sys.argv.pop(1)]()


if __name__ == "__main__":
    die_with_parent()
    fork_server.serve(sys.argv[1], load, [*inherited.stated(os.environ)])
