"""Step time of this project against other programs that train the same model, in pairs.

    python -m bench.peers --out bench/results/peers.json [--quick]

samestep    the strategy `single`, by this project's own step
plain       a plain loop after nanoGPT's published structure (`bench/contestants/plain.py`)
accelerate  transformers' GPT-2 in Accelerate's loop, where it is installed
trainer     transformers' GPT-2 in transformers' Trainer, where Accelerate is installed

All contestants live in one process, trained in turn in short blocks whose order is drawn anew each
time, so that drift of the machine hits them alike. A ratio is of two blocks of one round; the
result has its median over the rounds and the interval of that median. Under 1: this one is faster.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from bench.contestants.libraries import Accelerated, drive_trainer
from bench.contestants.ours import Ours
from bench.contestants.plain import Plain
from bench.contestants.setting import SIZES, Contestant, Setting
from pipeline.metrics.statistics import values_interval

OURS, TRAINER = Ours.name, "trainer"


@dataclass(frozen=True)
class Extent:
    """`rounds` of `steps` steps of each contestant, after one round that is not counted."""

    sizes: Sequence[str] = ("5M", "14M")
    precisions: Sequence[str] = ("fp32", "bf16")
    compiled: Sequence[bool] = (False, True)
    batch: int = 8
    rounds: int = 20
    steps: int = 1


QUICK = Extent(("tiny",), ("fp32",), (False,), 2, 6, 2)


def main() -> int:
    """Compare under every setting and write the ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="JSON file of the results")
    parser.add_argument("--quick", action="store_true", help="a tiny model, six rounds")
    parser.add_argument("--rounds", type=int, default=Extent.rounds)
    parser.add_argument("--sizes", nargs="+", choices=list(SIZES), default=list(Extent.sizes))
    args = parser.parse_args()
    extent = QUICK if args.quick else Extent(tuple(args.sizes), rounds=args.rounds)
    settings = [
        Setting(size, extent.batch, precision, compiled)
        for size in extent.sizes
        for precision in extent.precisions
        for compiled in extent.compiled
    ]
    from pipeline.machine.facts import hardware, provenance

    result = {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "hardware": hardware(),
        "git_commit": provenance()["git_commit"],
        "threads": torch.get_num_threads(),
        "versions": {name: _version(name) for name in ("torch", "transformers", "accelerate")},
        "settings": [compare(setting, extent.rounds, extent.steps) for setting in settings],
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"-> {args.out}")
    return 0


def _version(package: str) -> str | None:
    from importlib.metadata import version

    return version(package) if find_spec(package) else None


def compare(setting: Setting, rounds: int, steps: int) -> dict[str, Any]:
    """Median seconds of a step of each contestant, and this project's over each other's."""
    seconds = run_rounds(contestants(setting), setting, rounds, steps)
    ours = seconds[OURS]
    found = {
        **asdict(setting),
        "num_parameters": setting.num_parameters,
        "rounds": rounds,
        "steps": steps,
        "step_seconds": {name: _shown(taken) for name, taken in seconds.items()},
        "ratio": {
            name: _shown([one / other for one, other in zip(ours, taken, strict=True)])
            for name, taken in seconds.items()
            if name != OURS
        },
    }
    print(json.dumps(found), file=sys.stderr)
    torch.compiler.reset()
    return found


def contestants(setting: Setting) -> list[Contestant]:
    """Contestants that are installed; the Trainer joins in `run_rounds`."""
    makers: list[Callable[[Setting], Contestant]] = [Ours, Plain]
    if find_spec("accelerate"):
        makers.append(Accelerated)
    return [make(setting) for make in makers]


def run_rounds(
    given: Sequence[Contestant], setting: Setting, rounds: int, steps: int
) -> dict[str, list[float]]:
    """Seconds of a step in each round of each contestant; the round before them warms up."""
    seconds: dict[str, list[float]] = {one.name: [] for one in given}
    order = random.Random(2022)

    def each_once() -> None:
        for one in order.sample(given, len(given)):
            start = time.perf_counter()
            one.train(steps)
            seconds[one.name].append((time.perf_counter() - start) / steps)

    if find_spec("accelerate") is None:
        for _ in range(rounds + 1):
            each_once()
    else:
        seconds[TRAINER] = _round_the_trainer(setting, rounds, steps, each_once)
    return {name: taken[1:] for name, taken in seconds.items()}


def _round_the_trainer(
    setting: Setting, rounds: int, steps: int, others: Callable[[], None]
) -> list[float]:
    """The rounds within the Trainer's loop; returns its seconds of a step in each."""
    taken: list[float] = []
    start = time.perf_counter()

    def between() -> bool:
        nonlocal start
        taken.append((time.perf_counter() - start) / steps)
        others()
        start = time.perf_counter()
        return len(taken) <= rounds

    drive_trainer(setting, steps, between)
    return taken


def _shown(values: Sequence[float]) -> dict[str, float]:
    interval = values_interval(values)
    return {"median": interval.value, "low": interval.low, "high": interval.high}


if __name__ == "__main__":
    sys.exit(main())
