"""How far may emulated nodes be trusted? Checks on the model and workload of the default study.

    python -m bench.emulation --out bench/results/emulation.json [--quick]

invariance     two nodes in time dilated 10 times, over the least factor on this machine
eight_nodes    eight nodes in time dilated 15 times, over the least factor on this machine
cpu_seconds    steps and phases whose dilated time is under their own CPU seconds, of all runs
phase_length   time of short pieces of work over their CPU seconds, as many on a core as the factor
bandwidth      bus bandwidth of an all-reduce over the rate that the links are set to
twice_as_slow  how much longer a step is over slower links, over what a ring all-reduce costs more

All variants of a check run in each repeat, in an order of its own, so that drift of the machine
hits them alike. Where the factor leaves room, copies of the nodes keep the machine as busy.

What the host of a virtual machine disturbs is made again (`bench/emulated/undisturbed.py`); each
result says how many of its figures were taken all the same, and how many were dropped.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.emulated import checks
from bench.emulated.bandwidth import bandwidth
from bench.emulated.phase_length import WORK_SECONDS, phase_length
from bench.emulated.runs import Runs
from pipeline.emulation import links
from pipeline.emulation.nodes import why_not
from pipeline.machine.facts import hardware, provenance
from pipeline.schemas import validate

VERSION = 2
"""Version of the results; 1 had other checks, of nodes whose cores were shared by quotas."""


@dataclass(frozen=True)
class Extent:
    """What is measured how often."""

    repeats: int = 6
    cells: Sequence[str] = ("single", "sps", "dps", "horovod")
    factors: Sequence[int] = (1, 2, 5, 10)
    eight_factors: Sequence[int] = (15,)
    work_seconds: Sequence[float] = WORK_SECONDS
    nodes: Sequence[int] = (2, 4, 8)
    rates: Sequence[float] = (100.0, 1000.0)


QUICK = Extent(2, ("dps",), (1, 10), (15,), WORK_SECONDS[:1], (2,), (1000.0,))


def main() -> int:
    """Run the checks and write them; 1 where nodes cannot be emulated here."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="JSON file of the results")
    parser.add_argument("--repeats", type=int, default=Extent.repeats)
    parser.add_argument("--quick", action="store_true", help="one cell, two repeats, two factors")
    args = parser.parse_args()
    reason = why_not() or ("two cores are needed" if len(os.sched_getaffinity(0)) < 2 else None)
    if reason is not None:
        print(f"error: no emulated nodes here: {reason}", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="samestep-") as folder:
        runs = Runs(Path(folder))
        result = measured(runs, QUICK if args.quick else Extent(args.repeats))
    validate(result, "emulation", args.out)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"-> {args.out}")
    return 0


def measured(runs: Runs, extent: Extent) -> dict[str, Any]:
    """All results, with what they were measured on."""
    about = {
        "version": VERSION,
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "hardware": hardware(),
        "git_commit": provenance()["git_commit"],
        "repeats": extent.repeats,
        "mtu": links.MTU,
        "rate_mbits": checks.RATE_MBITS,
        "num_parameters": runs.num_parameters,
    }
    alike = _alike(runs, extent)
    bias = checks.largest_bias(one for found in alike.values() for one in found)
    others = _others(runs, extent)
    checks.profiled(runs, extent.cells)
    cpu_seconds = _say("cpu_seconds", runs.tally.told())
    return about | alike | {"largest_bias": bias, "cpu_seconds": cpu_seconds} | others


def _alike(runs: Runs, extent: Extent) -> dict[str, list[dict[str, Any]]]:
    """The checks in which all variants of a run should take as long."""
    repeats = extent.repeats
    paced = bool(runs.study.cluster.yardstick)
    two = checks.factors_here(2, extent.factors, yardstick=paced)
    eight = checks.factors_here(checks.NODES, extent.eight_factors, yardstick=paced)
    return {
        "invariance": [
            _say("invariance", checks.invariance(runs, cell, two, repeats)) for cell in extent.cells
        ],
        "eight_nodes": [
            _say("eight_nodes", checks.eight_nodes(runs, cell, eight, repeats))
            for cell in extent.cells
            if cell != "single"
        ],
    }


def _others(runs: Runs, extent: Extent) -> dict[str, list[dict[str, Any]]]:
    return {
        "phase_length": [
            _say("phase_length", phase_length(factor, seconds, runs.machine))
            for seconds in extent.work_seconds
            for factor in extent.factors
        ],
        "bandwidth": [reached(n, r, extent.repeats) for r in extent.rates for n in extent.nodes],
        "twice_as_slow": [
            _say("twice_as_slow", checks.slower(runs, nodes, extent.repeats))
            for nodes in extent.nodes
            if nodes < checks.NODES
        ],
    }


def reached(nodes: int, rate: float, repeats: int) -> dict[str, Any]:
    """Bus bandwidth of an all-reduce between so many nodes, over the rate."""
    shares, told = bandwidth(nodes, rate, repeats)
    about = {"nodes": nodes, "rate_mbits": rate}
    return _say("bandwidth", about | checks.shown(checks.interval_of(shares)) | told)


def _say(check: str, found: dict[str, Any]) -> dict[str, Any]:
    print(json.dumps({"check": check, **found}), file=sys.stderr)
    return found


if __name__ == "__main__":
    sys.exit(main())
