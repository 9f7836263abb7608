"""Build the emulated nodes of a run, measure what they get, fork their ranks and follow them.

Started by `pipeline.launch.preloaded` with the arguments of a rank.

The heavy packages are imported once, before the ranks are forked, each in the network and the share
of its node, with the variables that torchrun would set. What was measured is left as
`emulation.json` beside the ranks' own files.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
from argparse import Namespace
from functools import partial

from pipeline.emulation import NOTE, REPORT
from pipeline.emulation.cores import awake
from pipeline.emulation.dilation import dilate, places
from pipeline.emulation.measured import check_cores, check_quota, check_rates, measure
from pipeline.emulation.nodes import Nodes
from pipeline.files import write_text
from pipeline.launch.emulated import yardstick
from pipeline.launch.emulated.ranks import follow, running
from pipeline.machine import control_groups
from pipeline.machine.forks import stay_with
from pipeline.machine.processes import die_with_parent
from pipeline.resolved import ResolvedRun, resolve
from pipeline.training import worker


def run_here() -> int:
    """Build, measure, train; an error is left for the stage as a rank leaves its own."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    args = worker.parse(sys.argv[1:])
    parent = os.getppid()
    die_with_parent()
    try:
        run = resolve(worker.read_spec(args))
        run.strategy.check()  # nothing waits for a quiet machine to learn of a missing package
        return _run(run, args, parent)
    except Exception as error:
        worker.leave_error(error, args, rank=0)
        raise


def _run(run: ResolvedRun, args: Namespace, parent: int) -> int:
    """Build the nodes, measure what they get, fork the ranks and follow them to their end."""
    spec, world, link = run.spec, run.spec.world, run.link
    assert link is not None and world.cores_per_node is not None  # of an emulated network
    cores = control_groups.usable_cores()
    forward_seconds = yardstick.forward_seconds(args.yardstick, run)
    dilation = dilate(world, len(cores))
    quota = control_groups.cpu_quota()
    check_quota(quota, spec, dilation)
    nodes = Nodes(places(world.nodes, world.cores_per_node, cores), link, dilation)
    stay_with(parent)  # once more: Linux forgets it of whoever enters a user namespace
    # Under a quota (of a container, say) what keeps a core awake would use up the nodes' own time.
    with awake(cores if quota is None else []):
        tell = partial(write_text, args.out / NOTE)
        measured = measure(spec, nodes, tell)
        about = measured | {"cores": len(cores)}
        if forward_seconds is not None:
            about["forward_seconds"] = forward_seconds
        write_text(args.out / REPORT, json.dumps(about))
        check_cores(measured)
        check_rates(measured)
        # What every rank needs is imported once, so that a fork has it; it starts no thread.
        worker.import_heavy([spec.model])
        for module in run.strategy.modules:
            importlib.import_module(module)
        with running(run, nodes, forward_seconds, args) as started:
            return follow(started)


if __name__ == "__main__":
    sys.exit(run_here())
