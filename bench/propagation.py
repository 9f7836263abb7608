"""Does the time to place a model's tensors grow with the number of devices?

    python -m bench.propagation --out bench/results/propagation.json

By the abstract of GSPMD's first version (Xu et al. 2021) its compile time is constant in the
number of devices. Here a small GPT-2 with a model axis of two is placed by DTensor for 2 to 2,048
ranks, on torch's fake process group, each size in a process of its own: the first micro-batch, in
which every operator is placed, and the second, which finds all placements known; both hold rank 0's
own computation, equal for all sizes. The mesh with its groups is timed apart.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from functools import partial
from itertools import pairwise
from typing import Any

from bench.scaffold import ROOT, about, parser, write
from pipeline.resolved import resolve

SIZES = (2, 8, 32, 128, 512, 2048)


def main() -> int:
    """Measure every size and repeat in turn; write the times and their ratios."""
    options = parser(__doc__)
    options.add_argument("--repeats", type=int, default=5)
    options.add_argument("--size", type=int, help="measure this size alone and print it")
    args = options.parse_args()
    if args.size:
        print(json.dumps(measure(args.size)))
        return 0
    runs = [child(size, repeat) for repeat in range(args.repeats) for size in SIZES]
    medians = {
        size: statistics.median(r["placing_seconds"] for r in runs if r["ranks"] == size)
        for size in SIZES
    }
    result = about() | {
        "median_placing_seconds": medians,
        "ratio_largest_to_smallest": medians[SIZES[-1]] / medians[SIZES[0]],
        "runs": runs,
    }
    write(args.out, result)
    print(f"{SIZES[-1]} ranks take {result['ratio_largest_to_smallest']:.2f} times as long as 2")
    return 0


def child(size: int, repeat: int) -> dict[str, Any]:
    """One size in a fresh process, on one thread."""
    command = [sys.executable, "-m", "bench.propagation", "--out=-", f"--size={size}"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    printed = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    ).stdout
    run = {"ranks": size, "repeat": repeat, **json.loads(printed.splitlines()[-1])}
    print(json.dumps(run), file=sys.stderr)
    return run


def measure(size: int) -> dict[str, float]:
    """CPU seconds of the first pass beyond the second, and the three that it is made of."""
    import torch
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from pipeline.models.build import build_model
    from pipeline.parallel.types import Batch, Parts
    from pipeline.precision import make_precision
    from pipeline.study.spec import ModelSpec, OptimiserSpec, RunSpec, WorkloadSpec, WorldSpec
    from pipeline.training.optimiser import make_optimiser

    spec = RunSpec(
        study="bench",
        cell="propagation",
        strategy="annotated",
        options={
            "axes": {"data": 0, "model": 2},
            "annotations": {
                "*.mlp.c_fc.weight": ["model", None],
                "*.mlp.c_fc.bias": ["model"],
                "*.mlp.c_proj.weight": [None, "model"],
                "wte.weight": ["model", None],
            },
        },
        precision="fp32",
        world=WorldSpec(size, 1, "cpu", "gloo", "real"),
        model=ModelSpec("gpt2", num_layers=4, width=64, num_heads=4, context=32, vocab_size=512),
        optimiser=OptimiserSpec("adamw", 1e-3, 0.9, 0.999, 1e-8, 0.01, 1.0, "constant", 0),
        workload=WorkloadSpec(2 * size, 1, 2, 0, "weak", 0),
        repeat=0,
        seed=0,
    )
    run, ids = resolve(spec), torch.zeros((2, spec.model.context), dtype=torch.int64)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=size)
    model, make = build_model(spec.model, spec.seed), partial(make_optimiser, spec.optimiser)
    marks = [time.process_time()]
    trainable: Any = run.strategy.build(
        Parts(model, make, run.layout, make_precision(spec.precision, "cpu"), 1.0)
    )
    marks.append(time.process_time())
    for _ in range(2):
        trainable.propagate(Batch(ids, ids))
        marks.append(time.process_time())
    mesh, first, second = (stop - start for start, stop in pairwise(marks))
    return {
        "mesh_seconds": mesh, "first_seconds": first, "second_seconds": second,
        "placing_seconds": first - second,
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
