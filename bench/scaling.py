"""Step times on several emulated nodes over the least that computation and wire allow.

    python -m bench.scaling --out bench/results/scaling.json [--quick]

The bound of a strategy on n nodes is the longer of two times: the step of one device with an nth of
the sequences, measured here in the same repeats, and the bytes that the strategy sends by its
formula (a ring) over the rate of the link, headers included. It is met where all communication is
hidden behind computation. DDP is measured with several sizes of its buckets.

No yardstick is used, as sharded strategies have none; each repeat has every setting once.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.emulated import checks
from bench.emulated.runs import Runs, Taken, Variant
from pipeline.emulation.nodes import why_not
from pipeline.files import write_text
from pipeline.machine.facts import hardware, provenance
from pipeline.planner.memory import predict_sent
from pipeline.study.spec import RunSpec

RATE_MBITS = 1000.0


@dataclass(frozen=True)
class Setting:
    """A strategy with its knobs, as it is printed."""

    name: str
    strategy: str
    options: dict[str, Any] = field(default_factory=dict)


SETTINGS = (
    Setting("ddp", "ddp"),
    Setting("ddp, buckets of 0.25 MiB", "ddp", {"bucket_cap_mb": 0.25}),
    Setting("ddp, buckets of 0.1 MiB", "ddp", {"bucket_cap_mb": 0.1}),
    Setting("horovod", "horovod"),
    Setting("sharded", "sharded"),
)


def main() -> int:
    """Measure, print and write; 1 where nodes cannot be emulated here."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="JSON file of the results")
    parser.add_argument("--repeats", type=int, default=6)
    parser.add_argument("--quick", action="store_true", help="two repeats of DDP on two nodes")
    args = parser.parse_args()
    if (reason := why_not()) is not None:
        print(f"error: no emulated nodes here: {reason}", file=sys.stderr)
        return 1
    repeats = 2 if args.quick else args.repeats
    with tempfile.TemporaryDirectory(prefix="samestep-scaling-") as folder:
        runs = Runs(Path(folder), yardstick=False)
        places = (2,) if args.quick else (2, 4, 8)
        settings = SETTINGS[:1] if args.quick else SETTINGS
        found = [one for nodes in places for one in scaled(runs, nodes, settings, repeats)]
    about = {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "hardware": hardware(),
        "git_commit": provenance()["git_commit"],
        "repeats": repeats,
        "rate_mbits": RATE_MBITS,
        "num_parameters": runs.num_parameters,
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    write_text(args.out, json.dumps(about | {"settings": found}, indent=1) + "\n")
    for one in found:
        print(json.dumps(one))
    return 0


def scaled(
    runs: Runs, nodes: int, settings: Sequence[Setting], repeats: int
) -> list[dict[str, Any]]:
    """Each setting on so many nodes, over its bound; computation alone is one more variant."""
    specs = [spec_of(runs, setting, nodes) for setting in settings]
    factor = checks.least_factor(nodes)
    variants = [Variant(spec, factor) for spec in (alone(runs, nodes), *specs)]
    computed, *taken = runs.in_turn(repeats, variants)
    host = runs.machine.counts()
    return [
        {"setting": setting.name, "nodes": nodes, "dilation": factor}
        | over_bound(spec, computed, ones)
        | host
        for setting, spec, ones in zip(settings, specs, taken, strict=True)
    ]


def spec_of(runs: Runs, setting: Setting, nodes: int) -> RunSpec:
    """The default study's work under a setting."""
    base = runs.spec("dps", nodes, RATE_MBITS)
    return replace(base, strategy=setting.strategy, options=setting.options)


def alone(runs: Runs, nodes: int) -> RunSpec:
    """What one of so many nodes computes, by itself."""
    base = runs.spec("single", 1, RATE_MBITS)
    share = base.workload.global_batch // nodes
    return replace(base, workload=replace(base.workload, global_batch=share))


def wire_seconds(spec: RunSpec) -> float:
    """The bytes that a rank sends in a step, in full frames, over the rate of its link."""
    sent = sum(sends.wire_bytes for sends in predict_sent(spec))
    return sent / checks.WIRE * 8 / (RATE_MBITS * 1e6)


def over_bound(spec: RunSpec, computed: Sequence[Taken], taken: Sequence[Taken]) -> dict[str, Any]:
    """Medians of the times, and the step over the longer of the two, repeat by repeat."""
    wire = wire_seconds(spec)
    bounds = [max(one.seconds, wire) for one in computed]
    ratios = [one.seconds / bound for one, bound in zip(taken, bounds, strict=True)]
    return {
        "step_seconds": checks.median(one.seconds for one in taken),
        "compute_seconds": checks.median(one.seconds for one in computed),
        "wire_seconds": wire,
        "over_bound": checks.shown(checks.interval_of(ratios)),
    }


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
