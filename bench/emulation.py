"""How far may emulated nodes be trusted? Four checks, each a ratio with its interval.

    python -m bench.emulation --out bench/results/emulation.json [--quick]

a  dilated on one core against undilated on two: step time of every strategy at two link rates
b  bus bandwidth of an all-reduce over the rate that the links are set to
c  8 dilated nodes on 2 cores against 8 undilated ones on 16, where the machine has 16
d  a link twice as slow lengthens the step by what a ring all-reduce costs

Runs of a pair alternate, so that drift of the machine hits both alike. A run that leaves cores free
has the same run beside it there: two busy cores slow one another, and that is not what is asked.
The model is larger than that of the default study, so that a step takes some tenths of a second and
what another program on the machine takes now and then weighs less.

What the host of a virtual machine disturbs is made again (`bench/emulated/undisturbed.py`); each
result says how many of its figures were taken all the same, and how many were dropped.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.emulated.bandwidth import bandwidth
from bench.emulated.runs import Runs
from pipeline.emulation import links
from pipeline.emulation.available import why_not
from pipeline.metrics.statistics import Interval, repeats_interval
from pipeline.schemas import validate
from pipeline.spec import RunSpec
from pipeline.training.machine import hardware, provenance

CELLS = ("single", "sps", "dps", "horovod", "dps-amp", "horovod-amp")
RATES = (200.0, 1000.0)
WIRE = (links.MTU - links.HEADER_BYTES) / (links.MTU + links.FRAME_BYTES)
"""Bytes of a gradient in a full Ethernet frame, of those that the link counts."""


def main() -> int:
    """Run the checks and write them; 1 where nodes cannot be emulated here."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="JSON file of the results")
    parser.add_argument("--repeats", type=int, default=6)
    parser.add_argument("--quick", action="store_true", help="one strategy, two repeats")
    args = parser.parse_args()
    if (reason := why_not()) is not None:
        print(f"error: no emulated nodes here: {reason}", file=sys.stderr)
        return 1
    repeats = 2 if args.quick else args.repeats
    cells = ("dps",) if args.quick else CELLS
    with tempfile.TemporaryDirectory(prefix="samestep-") as folder:
        runs = Runs(Path(folder))
        result = {
            "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "hardware": hardware(),
            "git_commit": provenance()["git_commit"],
            "repeats": repeats,
            "mtu": links.MTU,
            "num_parameters": runs.num_parameters,
            "dilated_over_undilated": [
                dilated(runs, cell, rate, repeats) for rate in RATES for cell in cells
            ],
            "bandwidth": [reached(n, r, repeats) for r in (100.0, 1000.0) for n in (2, 4, 8)],
            "eight_nodes": eight(runs, repeats),
            "twice_as_slow": [slower(runs, nodes, repeats) for nodes in (2, 4)],
        }
    validate(result, "emulation", args.out)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"-> {args.out}")
    return 0


def dilated(runs: Runs, cell: str, rate: float, repeats: int) -> dict[str, Any]:
    """Check a: two nodes (one for `single`), on one core over on two."""
    nodes = 1 if cell == "single" else 2
    spec = runs.spec(cell, nodes, rate)
    shown = _ratio(runs, repeats, (spec, 1), (spec, 2))
    return _say("a", {"cell": cell, "rate_mbits": rate, **_shown(shown, runs.machine.told())})


def eight(runs: Runs, repeats: int) -> dict[str, Any]:
    """Check c."""
    cores = len(os.sched_getaffinity(0))
    if cores < 16:
        return {"not_run": f"needs 16 cores, this machine has {cores}"}
    spec = runs.spec("dps", 8, 1000.0)
    shown = _ratio(runs, repeats, (spec, 2), (spec, 16))
    return _say("c", _shown(shown, runs.machine.told()))


def slower(runs: Runs, nodes: int, repeats: int) -> dict[str, Any]:
    """Check d: the longer step over the time that the ring's bytes take more."""
    fast, slow = (runs.spec("dps", nodes, rate) for rate in (200.0, 100.0))
    quick, long = runs.pairs(repeats, (fast, 2), (slow, 2))
    wire_bits = 2 * (nodes - 1) / nodes * 4 * runs.num_parameters * 8 / WIRE
    foretold = wire_bits / 100e6 - wire_bits / 200e6
    shown = _interval_of([(b - a) / foretold for a, b in zip(quick, long, strict=True)])
    about = {"nodes": nodes, "foretold_seconds": foretold}
    return _say("d", {**about, **_shown(shown, runs.machine.told())})


def _ratio(runs: Runs, repeats: int, *pair: tuple[RunSpec, int]) -> Interval:
    """Median over the pairs of the first's step time over the second's, run side by side."""
    first, second = runs.pairs(repeats, *pair)
    return _interval_of([a / b for a, b in zip(first, second, strict=True)])


def reached(nodes: int, rate: float, repeats: int) -> dict[str, Any]:
    """Check b."""
    shares, told = bandwidth(nodes, rate, repeats)
    about = {"nodes": nodes, "rate_mbits": rate}
    return _say("b", {**about, **_shown(_interval_of(shares), told)})


def _interval_of(values: Sequence[float]) -> Interval:
    """The median of one figure a repeat, with its rank interval."""
    import numpy as np

    return repeats_interval([np.asarray([value]) for value in values])


def _shown(interval: Interval, told: Mapping[str, int]) -> dict[str, Any]:
    return {key: getattr(interval, key) for key in ("value", "low", "high", "n", "how")} | told


def _say(check: str, found: dict[str, Any]) -> dict[str, Any]:
    print(json.dumps({"check": check, **found}), file=sys.stderr)
    return found


if __name__ == "__main__":
    sys.exit(main())
