"""Build the emulated nodes of a run, measure what they get, fork their ranks and follow them.

Started by `pipeline.launch.start` with the arguments of a rank.

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
from typing import NoReturn

from pipeline import strategies
from pipeline.emulation import NOTE, REPORT
from pipeline.emulation.cores import Shares, awake
from pipeline.emulation.dilation import dilate, places
from pipeline.emulation.measured import check_cores, check_quota, check_rates, measure
from pipeline.emulation.nodes import Nodes, enter_private_network
from pipeline.errors import LaunchError
from pipeline.files import write_text
from pipeline.launch.emulated import yardstick
from pipeline.launch.emulated.ranks import EmulatedRun, follow, stay_with
from pipeline.machine import control_groups
from pipeline.machine.processes import die_with_parent
from pipeline.study.spec import RunSpec
from pipeline.training import worker


def run_here() -> int:
    """Build, measure, train; an error is left for the stage as a rank leaves its own."""
    signal.signal(signal.SIGTERM, _end)
    args = worker.parse(sys.argv[1:])
    parent = os.getppid()
    die_with_parent()
    try:
        spec = worker.read_spec(args)
        return _run(spec, args, parent)
    except Exception as error:
        worker.leave_error(error, args, rank=0)
        raise


def _run(spec: RunSpec, args: Namespace, parent: int) -> int:
    world, link = spec.world, spec.world.link
    if link is None or world.cores_per_node is None:
        raise LaunchError(f"{spec.run_id}: an emulated network needs a link and cores_per_node")
    cores = control_groups.usable_cores()
    forward_seconds = yardstick.forward_seconds(args.yardstick, spec)
    dilation = dilate(world, len(cores))
    quota = control_groups.cpu_quota()
    check_quota(quota, spec, dilation)
    enter_private_network()
    stay_with(parent)  # a user namespace forgets it
    nodes = Nodes(world.nodes, dilation.copies, link, dilation.factor)
    count = world.nodes * dilation.copies
    shares = Shares(places(count, world.cores_per_node, cores))
    # Under a quota (of a container, say) what keeps a core awake would use up the nodes' own time.
    kept_awake = cores if quota is None else []
    with awake(kept_awake):
        tell = partial(write_text, args.out / NOTE)
        measured = measure(spec, nodes, shares, dilation, tell)
        told = {} if forward_seconds is None else {"forward_seconds": forward_seconds}
        write_text(args.out / REPORT, json.dumps(measured | {"cores": len(cores)} | told))
        check_cores(measured)
        check_rates(measured)
        _import_heavy(spec)
        layout = strategies.load(spec.strategy, spec.options).layout(world)
        emulated = EmulatedRun(spec, layout, nodes, shares, dilation, forward_seconds)
        cables = nodes.listen()
        with emulated.running(args) as ranks:
            return follow(ranks, cables.fault)


def _import_heavy(spec: RunSpec) -> None:
    """Import once what every rank needs, so that a fork has it; no thread may be started by it."""
    strategy = strategies.load(spec.strategy, spec.options)
    strategy.check()
    worker.import_heavy()
    for module in strategy.modules:
        importlib.import_module(module)


def _end(signum: int, frame: object) -> NoReturn:
    sys.exit(128 + signum)


if __name__ == "__main__":
    sys.exit(run_here())
