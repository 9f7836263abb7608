"""torchrun on one of several nodes: `srun ... python -m pipeline.launch.slurm.node OPTIONS`.

The scheduler starts the same command on every node; the node's place among them, which torchrun
must know, stands in the scheduler's environment.
"""

from __future__ import annotations

import os
import sys

from pipeline.machine import image, inherited


def main() -> None:
    """Hand over to torchrun with `--node-rank`."""
    node = os.environ.get("SLURM_NODEID")
    if node is None:
        sys.exit(
            "error: SLURM_NODEID is not set; start one process on each node with srun, as "
            "`python -m pipeline commands` prints"
        )
    words = ["-m", "torch.distributed.run", f"--node-rank={node}", *sys.argv[1:]]
    # What this node's own scripts have exported is no more the study's than what the caller did. An
    # image's variables are part of it, and of its digest.
    environment = dict(os.environ)
    if image.digest_from_within() is None:
        environment = inherited.for_ranks(os.environ, inherited.stated(os.environ))
    if note := inherited.removed(os.environ, environment):
        print(note, file=sys.stderr, flush=True)
    os.execve(sys.executable, [sys.executable, *words], environment)  # noqa: S606, our own words


if __name__ == "__main__":
    main()
