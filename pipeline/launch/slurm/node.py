"""torchrun on one of several nodes: `srun ... python -m pipeline.launch.slurm.node OPTIONS`.

The scheduler starts the same command on every node; the node's place among them, which torchrun
must know, stands in the scheduler's environment.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from pipeline.errors import LaunchError

PLACES = ("SLURM_NODEID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
"""Where srun, Open MPI and other process managers write it."""


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
    from torch.distributed.run import main as torchrun

    torchrun([f"--node-rank={node}", *sys.argv[1:]])


if __name__ == "__main__":
    main()
