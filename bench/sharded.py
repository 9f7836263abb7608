"""Host time of ZeRO 1's optimiser on many ranks, of which this process is one, over plain AdamW's.

    python -m bench.sharded --out bench/results/sharded.json

Torch's fake process group sends nothing, so what is timed is what a rank's host does besides: it
puts gradients in the order of the ranks, steps its rows, and spreads what it gathered. The model
has the parameters of GPT-2's 12 layers, as narrow as 256 ranks divide without padding. On a CPU the
copies themselves count too. Both steps are made in turn, in one thread, and their ratio is kept.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from bench.contestants.setting import OPTIMISER
from pipeline.files import write_text
from pipeline.machine.facts import cpu_model
from pipeline.models.build import build_model
from pipeline.parallel.mesh import Layout
from pipeline.parallel.types import Parts
from pipeline.precision import make_precision
from pipeline.strategies.sharded.rows import ShardedOptimiser
from pipeline.study.spec import ModelSpec
from pipeline.training.optimiser import make_optimiser

WIDTH, VOCABULARY = 256, 512
MODEL = ModelSpec("gpt2", 12, WIDTH, 4, 256, VOCABULARY)
RANKS = (2, 16, 256)
MOST = 3.0
"""The goal at 256 ranks."""


def main() -> int:
    """Measure, print and write; 1 where the goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="JSON file of the results")
    parser.add_argument("--steps", type=int, default=50)
    args = parser.parse_args()
    torch.set_num_threads(1)
    found = [measure(ranks, args.steps) for ranks in RANKS]
    about = {"cpu_model": cpu_model(), "torch": torch.__version__, "steps": args.steps}
    write_text(args.out, json.dumps(about | {"ranks": found}, indent=1) + "\n")
    for one in found:
        print(json.dumps(one))
    return int(found[-1]["ratio"] > MOST)


def measure(ranks: int, steps: int) -> dict[str, Any]:
    """Medians of both steps in milliseconds, and of their ratios; the first ones do not count."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    try:
        plain, sharded = build_model(MODEL, 0), build_model(MODEL, 0)
        alone = make_optimiser(OPTIMISER, plain.parameters())
        layout = Layout((("data", ranks),), ranks, "cpu", "gloo")
        make, precision = partial(make_optimiser, OPTIMISER), make_precision("fp32", "cpu")
        cut = ShardedOptimiser(Parts(sharded, make, layout, precision, 1.0), dist.group.WORLD)
        cut.param_groups[0]["lr"] = OPTIMISER.learning_rate
        # Gloo's reduce-scatter is a ring of messages here; NCCL's is one call, as this is.
        with one_call():
            pairs = [
                (
                    timed(plain, alone.step),
                    timed(sharded, lambda: (cut.reduction.finish(), cut.step())),
                )
                for _ in range(steps + 5)
            ][5:]
    finally:
        dist.destroy_process_group()
    return {
        "ranks": ranks,
        "tensors": len(list(plain.parameters())),
        "adamw_ms": statistics.median(one for one, _ in pairs),
        "sharded_ms": statistics.median(other for _, other in pairs),
        "ratio": statistics.median(other / one for one, other in pairs),
    }


def one_call() -> Any:
    """Reduce-scatter by the group's own collective."""
    from unittest import mock

    def reduce_scatter(flat: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        own = flat.new_empty(len(flat) // group.size())
        dist.reduce_scatter_tensor(own, flat, group=group)
        return own

    return mock.patch("pipeline.strategies.sharded.rows.ring_reduce_scatter", reduce_scatter)


def timed(model: nn.Module, step: Callable[[], object]) -> float:
    """Milliseconds of a step after a backward pass, whose gradients are made here."""
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    begun = time.perf_counter()
    step()
    return 1e3 * (time.perf_counter() - begun)


if __name__ == "__main__":
    sys.exit(main())
