"""Accuracy of emulated times: two nodes in dilated time against the same two in real time.

    python -m bench.emulation --out bench/results/emulation.json [--quick]
    python -m bench.emulation --out eight.json --nodes 8 --share 2 --factors 10

In real time each node has a core of its own and nothing is stretched: that is the truth. With
`--share` emulated nodes have so many cores of their own, beside those of nodes in real time. All
variants of a strategy (real time, each factor, with and without the yardstick) run in each repeat,
in an order of its own, so that drift of the machine hits them alike. Runs that the host of a
virtual machine disturbs are made again (`bench/emulated/undisturbed.py`).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.emulated import checks
from bench.emulated.lanes import Lanes
from bench.emulated.runs import Runs, Variant
from pipeline.emulation.dilation import YARDSTICK_LEAST
from pipeline.emulation.nodes import why_not
from pipeline.machine.facts import hardware, provenance
from pipeline.study.spec import RunSpec

NODES = 2
MODELS: Mapping[str, Mapping[str, int]] = {
    "default": {},
    "ten times as large": {"num_layers": 4, "width": 176},
}
CELLS = ("sps", "dps", "horovod")
"""Of the default study; forward passes of the others wait for other ranks: no yardstick."""
OTHERS = ("sharded", "pipeline_parallel")


@dataclass(frozen=True)
class Extent:
    """Strategies, factors and repeats of a measurement."""

    repeats: int = 6
    models: Sequence[str] = tuple(MODELS)
    strategies: Sequence[str] = CELLS + OTHERS
    factors: Sequence[float] = (3, 5, 10)
    nodes: int = NODES
    beside: bool = False


QUICK = Extent(2, ("default",), ("dps",), (5,))


def main() -> int:
    """Measure, print and write; 1 where two nodes cannot be had in real time here."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="JSON file of the results")
    parser.add_argument("--repeats", type=int, default=Extent.repeats)
    parser.add_argument("--quick", action="store_true", help="one strategy, two repeats, a factor")
    parser.add_argument("--strategies", nargs="+", default=list(Extent.strategies))
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--factors", nargs="+", type=float, default=list(Extent.factors))
    parser.add_argument("--nodes", type=int, default=NODES)
    parser.add_argument("--share", type=int, default=0, help="cores of emulated nodes alone")
    parser.add_argument("--beside", action="store_true", help="also beside another program")
    args = parser.parse_args()
    cores, needed = sorted(os.sched_getaffinity(0)), args.nodes + args.share
    few = f"{needed} cores are needed, {len(cores)} are there" if len(cores) < needed else None
    reason = why_not() or few
    if reason is not None:
        print(f"error: no emulated nodes here: {reason}", file=sys.stderr)
        return 1
    extent = Extent(
        args.repeats, args.models, args.strategies, args.factors, args.nodes, args.beside
    )
    if args.quick:
        extent = QUICK
    about = hardware()
    result: dict[str, Any] = {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "hardware": {key: about[key] for key in ("cpu_model", "num_cores")},
        "git_commit": provenance()["git_commit"],
        "repeats": extent.repeats,
        "rate_mbits": checks.RATE_MBITS,
        "accuracy": [],
    }
    for model in extent.models:
        with tempfile.TemporaryDirectory(prefix="samestep-") as folder:
            runs = (
                Lanes(args.nodes, args.share, cores, MODELS[model])
                if args.share
                else Runs(Path(folder), model=MODELS[model], nodes=args.nodes)
            )
            for name in extent.strategies:
                found = {"model": model, "num_parameters": runs.num_parameters}
                found |= {"nodes": extent.nodes, "cores": args.share or len(cores)}
                found |= accuracy(runs, name, extent)
                print(json.dumps(found), file=sys.stderr)
                result["accuracy"].append(found)
                write(args.out, result)
            if isinstance(runs, Lanes):
                runs.close()
    print(f"-> {args.out}")
    return 0


def write(out: Path, result: Mapping[str, Any]) -> None:
    """Write what there is: a measurement of half an hour may be stopped."""
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def accuracy(runs: Runs, name: str, extent: Extent) -> dict[str, Any]:
    """Step time in real time, and each emulated one over it, repeat by repeat."""
    first, *others = variants(runs, name, extent.factors, extent.nodes)
    if extent.beside:
        others += [replace(one, beside=True) for one in others if one.spec.world.yardstick is None]
    real, *emulated = runs.in_turn(extent.repeats, [first, *others])
    ratios = []
    for one, taken in zip(others, emulated, strict=True):
        pairs = list(zip(taken, real, strict=True))
        ratios.append(
            {"factor": one.factor, "yardstick": bool(one.spec.world.yardstick)}
            | ({"beside": "another program"} if one.beside else {})
            | checks.shown(checks.interval_of([a.seconds / b.seconds for a, b in pairs]))
            # What the same work costs in CPU seconds: the part of the ratio that caches explain.
            | {"cpu_seconds": checks.median(a.cpu_seconds / b.cpu_seconds for a, b in pairs)}
        )
    seconds = checks.shown(checks.interval_of([one.seconds for one in real]))
    return {"strategy": name, "step_seconds": seconds, "ratios": ratios} | runs.machine.counts()


def variants(runs: Runs, name: str, factors: Sequence[float], nodes: int = NODES) -> list[Variant]:
    """A strategy in real time, at each factor, and with the yardstick where it can be had."""
    paced = spec_of(runs, name, nodes)
    plain = replace(paced, world=replace(paced.world, yardstick=None))
    real = replace(plain, world=replace(plain.world, real_time=True))
    found = [Variant(real, 1), *(Variant(plain, factor) for factor in factors)]
    if paced.world.yardstick:
        found += [Variant(paced, factor) for factor in factors if factor >= YARDSTICK_LEAST]
    return found


def spec_of(runs: Runs, name: str, nodes: int = NODES) -> RunSpec:
    """A cell of the default study on some nodes; of another strategy with its default knobs."""
    if name in CELLS:
        return runs.spec(name, nodes, checks.RATE_MBITS)
    plain = runs.spec("dps", nodes, checks.RATE_MBITS)
    world = replace(plain.world, yardstick=None)
    return replace(plain, cell=name.replace("_", "-"), strategy=name, options={}, world=world)


if __name__ == "__main__":
    sys.exit(main())
