"""Step time of this project's GPT-2 over that of others of the same shape, in pairs.

    python -m bench.peers --out bench/results/peers.json [--minutes 10]
    python -m bench.peers --out gpu.json --device cuda --sizes 124M

samestep      the strategy `single`, by the loop's own reading, step and report
transformers  the same with the library's model (GPT2LMHeadModel)
plain         a plain loop after nanoGPT's published structure (`bench/contestants/plain.py`)

With `NANOGPT=FOLDER` of a checkout of nanoGPT:
nanogpt       its own model and optimiser in that loop
exact_gelu    this project's with the exact GELU, as nanoGPT has it: both compute one function

The Trainer of transformers imports accelerate, which is not in the lock: docs/lab-notes.md has its
figures.

Each has a process, set up as its program does it (ours as ranks of a run: freed memory is kept).
They train in turn in short blocks whose order is drawn anew each time, so that drift of the machine
hits them alike. A ratio is of two blocks of one round; the result has its median over the rounds
and the interval of that median. Under 1: this project is faster. Each setting has its share of the
minutes that are left, and ends early from `LEAST_ROUNDS` rounds on.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from functools import partial
from itertools import product
from multiprocessing import get_context
from typing import Any

import torch
from torch.nn import functional

from bench.contestants import OPTIMISER, Setting, Tokens
from bench.contestants.plain import NANOGPT, NanoGpt, Plain
from bench.scaffold import about, in_turn, parser, shown, write
from pipeline import strategies
from pipeline.machine.processes import keep_freed_memory
from pipeline.models.build import build_model, compile_model
from pipeline.parallel.types import Batch, Parts
from pipeline.precision import make_precision
from pipeline.study.spec import WorldSpec
from pipeline.training.optimiser import make_optimiser

ROUNDS, LEAST_ROUNDS = 40, 6
"""With fewer than the least no interval of a median covers 95 %."""

BATCH = {"5M": 8, "14M": 4, "124M": 8}
"""Sequences of a step: on a CPU it takes about as long with 5M as with 14M."""


class Ours:
    """The shared step of one process."""

    def __init__(self, setting: Setting, **other: Any) -> None:
        self.device = torch.device(setting.device)
        backend = {"cpu": "gloo", "cuda": "nccl"}[setting.device]
        world = WorldSpec(1, 1, setting.device, backend, "loopback")
        strategy = strategies.load("single", {})
        self.model = build_model(replace(setting.model, **other), 11).to(self.device)
        if setting.compiled:
            compile_model(self.model, whole=True)  # as a run of `single`
        precision = make_precision(setting.precision, setting.device)
        optimiser, layout = partial(make_optimiser, OPTIMISER), strategy.layout(world)
        self.trainable = strategy.build(
            Parts(self.model, optimiser, layout, precision, OPTIMISER.max_grad_norm)
        )
        self.tokens, self.batch, self.step = Tokens(setting), setting.batch, 0

    def train(self, steps: int) -> float:
        """Read, step and report, as the training loop does between two barriers."""
        loss = float("nan")
        for _ in range(steps):
            self.step += 1
            read = self.tokens.slice(self.step, 0, self.batch)
            inputs, targets = (torch.from_numpy(ids).to(self.device) for ids in read)
            self.trainable.step([Batch(inputs, targets)])
            loss = self.trainable.report().loss
        return loss


class Library(Ours):
    """The same step of the model as transformers has it."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting, family="transformers", architecture="GPT2LMHeadModel")


class ExactGelu(Ours):
    """Of the exact GELU, nanoGPT's; GPT-2's is the tanh form, which takes a CPU longer."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        for name, part in self.model.named_modules():
            if name.endswith("mlp"):
                part.forward = lambda x, part=part: part.c_proj(functional.gelu(part.c_fc(x)))


Make = type[Ours] | type[Plain]
CONTESTANTS: dict[str, Make] = {"samestep": Ours, "transformers": Library, "plain": Plain}
if NANOGPT in os.environ:
    CONTESTANTS = {"exact_gelu": ExactGelu, "samestep": Ours, "nanogpt": NanoGpt}


def main() -> int:
    """Compare under every setting and write the ratios."""
    options = parser(__doc__)
    options.add_argument("--sizes", nargs="+", choices=list(BATCH), default=["5M", "14M"])
    options.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options.add_argument("--minutes", type=float, default=10.0, help="of all settings together")
    args = options.parse_args()
    ends = time.monotonic() + 60 * args.minutes
    settings = [
        Setting(size, BATCH[size], precision, compiled, args.device)
        for size, precision, compiled in product(args.sizes, ("fp32", "bf16"), (False, True))
    ]
    steps = 5 if args.device == "cuda" else 1  # there the reported loss of each would count most
    rows = []
    for place, setting in enumerate(settings):
        now = time.monotonic()
        share = (ends - now) / (len(settings) - place)
        rows.append(compare(setting, steps, now + share))
    versions = {"threads": torch.get_num_threads(), "torch": torch.__version__}
    write(args.out, about() | versions | {"settings": rows})
    print(f"-> {args.out}")
    return 0


def compare(setting: Setting, steps: int, ends: float) -> dict[str, Any]:
    """Median seconds of a step of each, and those of the first contestant over the others'."""
    with ExitStack() as stack:
        trains = {
            name: stack.enter_context(apart(make, setting)) for name, make in CONTESTANTS.items()
        }
        seconds = run_rounds(trains, ROUNDS, steps, ends)
    own = next(iter(seconds.values()))
    row = {
        **asdict(setting),
        "num_parameters": setting.num_parameters,
        "rounds": len(own),
        "steps": steps,
        "step_seconds": {name: shown(taken) for name, taken in seconds.items()},
        "ratio": {
            name: shown([one / other for one, other in zip(own, taken, strict=True)])
            for name, taken in seconds.items()
            if taken is not own
        },
    }
    print(json.dumps(row), file=sys.stderr)
    return row


@contextmanager
def apart(make: Make, setting: Setting) -> Iterator[Callable[[int], float]]:
    """Have a contestant take steps in a process of its own, as when somebody trains with it.

    What a program sets for its whole process, such as how memory is allocated, is then its own.
    """
    with ProcessPoolExecutor(1, get_context("spawn"), _begin, (make, setting)) as pool:
        pool.submit(_train, 0).result()  # it is made
        yield lambda steps: pool.submit(_train, steps).result()


_HERE: list[Ours | Plain] = []


def _begin(make: Make, setting: Setting) -> None:
    if issubclass(make, Ours):
        keep_freed_memory()
    _HERE.append(make(setting))


def _train(steps: int) -> float:
    return _HERE[0].train(steps)


def run_rounds(
    trains: Mapping[str, Callable[[int], object]], rounds: int, steps: int, ends: float
) -> dict[str, list[float]]:
    """Seconds of a step in each round of each contestant.

    After `ends`, of the monotonic clock, no further round is begun once there are `LEAST_ROUNDS`.
    """

    def timed(train: Callable[[int], object]) -> float:
        start = time.perf_counter()
        train(steps)
        return (time.perf_counter() - start) / steps

    def goes_on(done: int) -> bool:
        return done < rounds and (done < LEAST_ROUNDS or time.monotonic() <= ends)

    return in_turn({name: partial(timed, train) for name, train in trains.items()}, goes_on)


if __name__ == "__main__":
    sys.exit(main())
