"""Two training steps of every strategy in this environment, on four ranks on the CPU.

    python -m torch.distributed.run --standalone --nproc-per-node=4 -m envs.image.strategies FILE

Writes for each strategy null, or the reason for which it cannot run here, as JSON: what an image
states. One that can run, and then fails or takes other steps than a single device, ends this with
an error, so no image states what it does not do.
"""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

from pipeline import strategies
from pipeline.errors import UnsupportedError
from pipeline.records import Step
from pipeline.study.spec import ModelSpec, OptimiserSpec, RunSpec, WorkloadSpec, WorldSpec
from pipeline.training.clock import Clock
from pipeline.training.loop import Loop

ALONE = "single"
SPEC = RunSpec(
    study="image",
    cell="each",
    strategy=ALONE,
    options={},
    precision="fp32",
    world=WorldSpec(1, 1, "cpu", "gloo", "loopback"),
    model=ModelSpec("gpt2", num_layers=4, width=32, num_heads=4, context=16, vocab_size=61),
    optimiser=OptimiserSpec("adamw", 1e-3, 0.9, 0.999, 1e-8, 0.01, 1.0, "constant", 0),
    workload=WorkloadSpec(8, 1, 2, 1, "strong", 0),
    repeat=0,
    seed=1,
)
BAND = 1e-5
"""Relative, of the losses to those of a single device."""


def loop_of(spec: RunSpec, rank: int, device: torch.device) -> Loop:
    """The training of a run on this rank, each step on the same few sequences.

    Raises UnsupportedError where it cannot run here.
    """
    chosen = strategies.load(spec.strategy, spec.options)
    chosen.check()
    ids = torch.randint(0, 61, (8, 17), generator=torch.Generator().manual_seed(1)).numpy()
    batches: Any = SimpleNamespace(
        slice=lambda step, start, stop: (ids[start:stop, :-1], ids[start:stop, 1:])
    )
    batches.of = lambda *_: batches  # of one shape
    return Loop(spec, chosen, batches, rank, Clock(device))


def losses(name: str, ranks: int, model: ModelSpec = SPEC.model) -> list[float]:
    """Losses of the steps of a strategy; raises UnsupportedError where it cannot run here."""
    world = replace(SPEC.world, ranks_per_node=ranks)
    spec = replace(SPEC, strategy=name, world=world, model=model)
    steps = list[Step]()
    loop = loop_of(spec, dist.get_rank() % ranks, torch.device("cpu"))
    loop.run(steps.append)
    return [math.nan if step.loss is None else step.loss for step in steps]


def stated() -> dict[str, str | None]:
    """Reasons why strategies cannot run here, None where one can; RuntimeError for other steps."""
    plain = losses(ALONE, 1)
    reasons: dict[str, str | None] = {ALONE: None}
    for name in strategies.names():
        try:
            expected, model = plain, SPEC.model
            if strategies.load(name, {}).example:
                model = strategies.example(name)
                expected = losses(ALONE, 1, model)
            own = plain if name == ALONE else losses(name, dist.get_world_size(), model)
            if strategies.load(name, {}).algorithm:  # it takes another step from here on
                own = [*own[:1], *expected[1:]]
        except UnsupportedError as error:
            reasons[name] = str(error)
            continue
        except Exception as error:
            error.add_note(f"in the strategy {name}")
            raise
        if not all(math.isclose(*pair, rel_tol=BAND) for pair in zip(own, expected, strict=True)):
            raise RuntimeError(f"strategy {name} has the losses {own}, expected {expected}")
        reasons[name] = None
    return reasons


def main() -> None:
    """Write what `stated` returns; all strategies share the group, which they cannot join again."""
    dist.init_process_group("gloo")
    reasons = stated()
    if dist.get_rank() == 0:
        Path(sys.argv[1]).write_text(json.dumps(reasons), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
