"""Asks for the ranks of a launch: `python -m tests.parity.ask STRATEGY WORLD TOKENS OUT`.

They are forked by the session's own process, which has torch loaded once for all launches; where
it does not answer, by this one. It imports little, so that asking takes no time.
"""

import os
import sys
from functools import cache
from pathlib import Path

from pipeline.launch import preloaded
from pipeline.machine import inherited
from pipeline.machine.processes import die_with_parent

VARIABLE = "SAMESTEP_PARITY"
"""Name of that process's socket, in the environment of the tests."""
READ_AT_LOAD = ("OMP_NUM_THREADS",)


@cache
def start() -> None:
    """Start the process that has torch loaded, once; it ends with this one."""
    environment = inherited.for_stages(os.environ) | {"OMP_NUM_THREADS": "1"}
    preloaded.start(("tests.parity.ask",), VARIABLE, environment)


def load() -> preloaded.Work:
    """Work of a launch, with all that it imports loaded, models and FSDP2 included."""
    from pipeline import models
    from pipeline.training import worker
    from tests.parity import rank

    worker.import_heavy(models.examples().values())
    rank.reuse_groups()  # before what takes functions that make groups by their names
    import torch.distributed.fsdp  # noqa: F401

    def work() -> int:
        strategy, world, tokens, out = sys.argv[1:]
        return rank.start(strategy, int(world), Path(tokens), Path(out))

    return work


def main() -> int:
    """Serve, or ask."""
    die_with_parent()
    if len(sys.argv) == 2:
        preloaded.serve(sys.argv[1], load, READ_AT_LOAD)
    code = preloaded.ask(VARIABLE, sys.argv[1:])
    return load()() if code is None else code


if __name__ == "__main__":
    sys.exit(main())
