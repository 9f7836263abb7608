"""torchrun on one of several nodes: `srun ... python -m pipeline.launch.slurm.node OPTIONS`.

The scheduler starts the same command on every node; the node's place among them, which torchrun
must know, stands in the scheduler's environment.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from pipeline.errors import LaunchError
from pipeline.machine import image, inherited

PLACES = ("SLURM_NODEID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
"""Variables in which srun, Open MPI and other process managers give it."""


def place(environment: Mapping[str, str]) -> int:
    """This node's place, 0 for the first; raises LaunchError where no scheduler says it."""
    for name in PLACES:
        if name in environment:
            return int(environment[name])
    raise LaunchError(
        f"none of {', '.join(PLACES)} is set; start one process on each node with the scheduler's "
        "own command, such as srun"
    )


def main() -> None:
    """Hand over to torchrun with `--node-rank`."""
    try:
        node = place(os.environ)
    except LaunchError as error:
        sys.exit(f"error: {error}")
    words = ["-m", "torch.distributed.run", f"--node-rank={node}", *sys.argv[1:]]
    # What this node's own scripts have exported is no more the study's than what the caller did. An
    # image's variables are part of it, and of its digest.
    within = image.digest_from_within() is not None
    environment = dict(os.environ) if within else inherited.again_for_ranks(os.environ)
    if note := inherited.removed(os.environ, environment):
        print(note, file=sys.stderr, flush=True)
    os.execve(sys.executable, [sys.executable, *words], environment)  # noqa: S606, our own words


if __name__ == "__main__":
    main()
