"""Step time of this project against other programs that train the same model, in pairs.

    python -m bench.peers --out bench/results/peers.json [--minutes 10] [--quick]
    python -m bench.peers --out gpu.json --device cuda --sizes 124M

samestep    the strategy `single`, by this project's own step
plain       a plain loop after nanoGPT's published structure (`bench/contestants/plain.py`)
accelerate  transformers' GPT-2 in Accelerate's loop, where it is installed
trainer     transformers' GPT-2 in transformers' Trainer, where Accelerate is installed

Each contestant has a process, set up as its program does it (ours as a rank of a run: freed memory
is kept). They train in turn in short blocks whose order is drawn anew each time, so that drift of
the machine hits them alike. A ratio is of two blocks of one round; the result has its median over
the rounds and the interval of that median. Under 1: this one is faster. Each setting has its share
of the minutes that are left, and ends early from `LEAST_ROUNDS` rounds on.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from bench.contestants.apart import Apart
from bench.contestants.libraries import Accelerated, drive_trainer
from bench.contestants.ours import Ours
from bench.contestants.plain import Plain
from bench.contestants.setting import Contestant, Setting
from pipeline.machine.processes import keep_freed_memory
from pipeline.metrics.statistics import values_interval

OURS, TRAINER = Ours.name, "trainer"

LEAST_ROUNDS = 6
"""With fewer no interval of a median covers 95 %."""

BATCH = {"tiny": 2, "5M": 8, "14M": 4, "124M": 8}
"""Sequences of a step: on a CPU it takes about as long with 5M as with 14M."""


@dataclass(frozen=True)
class Extent:
    """`rounds` of `steps` steps of each contestant, after one round that is not counted."""

    sizes: Sequence[str] = ("5M", "14M")
    precisions: Sequence[str] = ("fp32", "bf16")
    compiled: Sequence[bool] = (False, True)
    rounds: int = 20
    steps: int = 1
    device: str = "cpu"

    def settings(self) -> list[Setting]:
        """All combinations, in the order in which they are measured."""
        return [
            Setting(size, BATCH[size], precision, compiled, self.device)
            for size in self.sizes
            for precision in self.precisions
            for compiled in self.compiled
        ]


QUICK = Extent(("tiny",), ("fp32",), (False,), 6, 2)


def main() -> int:
    """Compare under every setting and write the ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="JSON file of the results")
    parser.add_argument("--quick", action="store_true", help="a tiny model, six rounds")
    parser.add_argument("--rounds", type=int, default=Extent.rounds)
    parser.add_argument("--sizes", nargs="+", choices=list(BATCH), default=list(Extent.sizes))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--minutes", type=float, default=10.0, help="of all settings together")
    args = parser.parse_args()
    extent = QUICK if args.quick else Extent(tuple(args.sizes), rounds=args.rounds)
    if args.device == "cuda":  # a step is so short that its reported loss would count most
        extent = replace(extent, device=args.device, steps=5)
    ends = time.monotonic() + 60 * args.minutes
    from pipeline.machine.facts import hardware, provenance

    result = {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "hardware": hardware(),
        "git_commit": provenance()["git_commit"],
        "threads": torch.get_num_threads(),
        "versions": {name: _version(name) for name in ("torch", "transformers", "accelerate")},
        "settings": compare_all(extent, ends),
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"-> {args.out}")
    return 0


def _version(package: str) -> str | None:
    from importlib.metadata import version

    return version(package) if find_spec(package) else None


def compare_all(extent: Extent, ends: float) -> list[dict[str, Any]]:
    """Every setting; `ends` is when the last one is to be done, of the monotonic clock."""
    settled, settings = [], extent.settings()
    for place, setting in enumerate(settings):
        now = time.monotonic()
        share = (ends - now) / (len(settings) - place)
        settled.append(compare(setting, extent.rounds, extent.steps, now + share))
    return settled


def compare(setting: Setting, rounds: int, steps: int, ends: float = math.inf) -> dict[str, Any]:
    """Median seconds of a step of each contestant, and this project's over each other's."""
    given = [
        Apart(make, make.name, setting, keep_freed_memory if make is Ours else None)
        for make in makers()
    ]
    try:
        seconds = run_rounds(given, setting, rounds, steps, ends)
    finally:
        for one in given:
            one.close()
    ours = seconds[OURS]
    row = {
        **asdict(setting),
        "num_parameters": setting.num_parameters,
        "rounds": len(seconds[OURS]),
        "steps": steps,
        "step_seconds": {name: _shown(taken) for name, taken in seconds.items()},
        "ratio": {
            name: _shown([one / other for one, other in zip(ours, taken, strict=True)])
            for name, taken in seconds.items()
            if name != OURS
        },
    }
    print(json.dumps(row), file=sys.stderr)
    torch.compiler.reset()
    return row


def makers() -> list[Any]:
    """Of those that are installed; the Trainer joins in `run_rounds`."""
    return [Ours, Plain, *([Accelerated] if find_spec("accelerate") else ())]


def run_rounds(
    given: Sequence[Contestant],
    setting: Setting,
    rounds: int,
    steps: int,
    ends: float = math.inf,
) -> dict[str, list[float]]:
    """Seconds of a step in each round of each contestant; the round before them warms up.

    After `ends`, of the monotonic clock, no further round is begun once there are `LEAST_ROUNDS`.
    """
    seconds: dict[str, list[float]] = {one.name: [] for one in given}
    order = random.Random(2022)

    def each_once() -> None:
        for one in order.sample(given, len(given)):
            start = time.perf_counter()
            one.train(steps)
            seconds[one.name].append((time.perf_counter() - start) / steps)

    def enough(done: int) -> bool:
        return done >= rounds or (done >= LEAST_ROUNDS and time.monotonic() > ends)

    if find_spec("accelerate") is None:
        done = -1  # the one that warms up
        while not enough(done):
            each_once()
            done += 1
    else:
        seconds[TRAINER] = _round_the_trainer(setting, steps, each_once, enough)
    return {name: taken[1:] for name, taken in seconds.items()}


def _round_the_trainer(
    setting: Setting, steps: int, others: Callable[[], None], enough: Callable[[int], bool]
) -> list[float]:
    """The rounds within the Trainer's loop; returns its seconds of a step in each."""
    taken: list[float] = []
    start = time.perf_counter()

    def between() -> bool:
        nonlocal start
        if setting.device == "cuda":
            torch.cuda.synchronize()
        taken.append((time.perf_counter() - start) / steps)
        others()
        start = time.perf_counter()
        return not enough(len(taken) - 1)

    drive_trainer(setting, steps, between)
    return taken


def _shown(values: Sequence[float]) -> dict[str, float]:
    interval = values_interval(values)
    return {"median": interval.value, "low": interval.low, "high": interval.high}


if __name__ == "__main__":
    sys.exit(main())
