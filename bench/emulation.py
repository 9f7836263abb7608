"""Accuracy of emulated times: two nodes in dilated time against the same two in real time.

    python -m bench.emulation --out bench/results/emulation.json [--beside]
    python -m bench.emulation --out bench/results/exposed.json --exposed
    python -m bench.emulation --out eight.json --nodes 8 --share 2 --factors 10

In real time each node has a core of its own and nothing is stretched: that is the truth. With
`--share` emulated nodes have so many cores of their own, beside those of nodes in real time. All
variants of a strategy (real time, each factor, with and without the yardstick) run in each repeat,
in an order of its own, so that drift of the machine hits them alike. Runs that the host of a
virtual machine disturbs are made again. With `--exposed` the runs of `CELLS` are profiled, and
shares of exposed communication are compared in place of times.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any

from bench.emulated.runs import Lanes, Runs, Variant, default_study
from bench.scaffold import about, parser, write
from pipeline.emulation.dilation import YARDSTICK_LEAST
from pipeline.emulation.nodes import why_not
from pipeline.launch import preloaded
from pipeline.metrics.statistics import values_interval
from pipeline.models import num_parameters
from pipeline.resolved import first_runs
from pipeline.study.spec import RunSpec

NODES = 2
MODELS: Mapping[str, Mapping[str, int]] = {
    "default": {},
    "ten times as large": {"num_layers": 4, "width": 176},
}
CELLS = ("sps", "dps", "horovod")
"""Of the default study; forward passes of the others wait for other ranks: no yardstick."""
OTHERS = ("sharded", "pipeline_parallel")

REPEATS, FACTORS = 6, (3.0, 5.0, 10.0)
RATE_MBITS = 1000.0
"""The faster link of the study, over which the cores' part of a step is the larger one."""


def main() -> int:
    """Measure, print and write; 1 where two nodes cannot be had in real time here."""
    options = parser(__doc__)
    options.add_argument("--factors", nargs="+", type=float, default=list(FACTORS))
    options.add_argument("--nodes", type=int, default=NODES)
    options.add_argument("--share", type=int, default=0, help="cores of emulated nodes alone")
    options.add_argument("--beside", action="store_true", help="also beside another program")
    options.add_argument("--exposed", action="store_true", help="shares of communication alone")
    args = options.parse_args()
    cores, needed = sorted(os.sched_getaffinity(0)), args.nodes + args.share
    few = f"{needed} cores are needed, {len(cores)} are there" if len(cores) < needed else None
    reason = why_not() or few
    if reason is not None:
        print(f"error: no emulated nodes here: {reason}", file=sys.stderr)
        return 1
    result = about() | {"repeats": REPEATS, "rate_mbits": RATE_MBITS, "accuracy": []}
    for name, model in MODELS.items():
        study = default_study(model, args.nodes)
        with tempfile.TemporaryDirectory(prefix="samestep-") as folder:
            if args.share:
                runs: Runs = Lanes(args.nodes, args.share, cores, study)
            else:
                preloaded.start_ranks(first_runs(study))
                runs = Runs(Path(folder), study)
            for strategy in CELLS if args.exposed else CELLS + OTHERS:
                parameters = num_parameters(spec_of(runs, strategy).model)
                row = {"model": name, "num_parameters": parameters}
                row |= {"nodes": args.nodes, "cores": args.share or len(cores)}
                if args.exposed:
                    row |= exposed(runs, strategy, args.factors, args.nodes)
                else:
                    row |= accuracy(runs, strategy, args.factors, args.nodes, beside=args.beside)
                print(json.dumps(row), file=sys.stderr)
                result["accuracy"].append(row)
                write(args.out, result)
            if isinstance(runs, Lanes):
                runs.close()
    print(f"-> {args.out}")
    return 0


def accuracy(
    runs: Runs, name: str, factors: Sequence[float], nodes: int, *, beside: bool
) -> dict[str, Any]:
    """Step time in real time, and each emulated one over it, repeat by repeat."""
    first, *others = variants(runs, name, factors, nodes)
    if beside:
        others += [replace(one, beside=True) for one in others if one.spec.world.yardstick is None]
    real, *emulated = runs.in_turn(REPEATS, [first, *others])
    ratios = []
    for one, taken in zip(others, emulated, strict=True):
        pairs = list(zip(taken, real, strict=True))
        ratios.append(
            {"factor": one.factor, "yardstick": bool(one.spec.world.yardstick)}
            | ({"beside": "another program"} if one.beside else {})
            | asdict(values_interval([a.seconds / b.seconds for a, b in pairs]))
            # What the same work costs in CPU seconds: the part of the ratio that caches explain.
            | {"cpu_seconds": median(a.cpu_seconds / b.cpu_seconds for a, b in pairs)}
        )
    seconds = asdict(values_interval([one.seconds for one in real]))
    return {"strategy": name, "step_seconds": seconds, "ratios": ratios} | runs.machine.counts()


def exposed(runs: Runs, name: str, factors: Sequence[float], nodes: int) -> dict[str, Any]:
    """Share of exposed communication in real time, and of each emulated variant."""
    profiled = [
        replace(one, spec=replace(one.spec, profile=True))
        for one in variants(runs, name, factors, nodes)
    ]
    shares = [
        {"factor": one.factor, "yardstick": bool(one.spec.world.yardstick)}
        | asdict(values_interval([run.exposed for run in taken]))
        for one, taken in zip(profiled, runs.in_turn(REPEATS, profiled), strict=True)
    ]
    return {"strategy": name, "exposed": shares} | runs.machine.counts()


def variants(runs: Runs, name: str, factors: Sequence[float], nodes: int = NODES) -> list[Variant]:
    """A strategy in real time, at each factor, and with the yardstick where it can be had."""
    paced = spec_of(runs, name, nodes)
    plain = replace(paced, world=replace(paced.world, yardstick=None))
    real = replace(plain, world=replace(plain.world, real_time=True))
    every = [Variant(real, 1), *(Variant(plain, factor) for factor in factors)]
    if paced.world.yardstick:
        every += [Variant(paced, factor) for factor in factors if factor >= YARDSTICK_LEAST]
    return every


def spec_of(runs: Runs, name: str, nodes: int = NODES) -> RunSpec:
    """A cell of the default study on some nodes; of another strategy with its default knobs."""
    if name in CELLS:
        return runs.spec(name, nodes, RATE_MBITS)
    plain = runs.spec("dps", nodes, RATE_MBITS)
    world = replace(plain.world, yardstick=None)
    return replace(plain, cell=name.replace("_", "-"), strategy=name, options={}, world=world)


if __name__ == "__main__":
    sys.exit(main())
