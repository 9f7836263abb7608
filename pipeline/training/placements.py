"""DTensor's placements of the tensors of a run, by one process without its ranks.

One micro-batch of rank 0 goes through the model on torch's fake process group, whose collectives
send nothing and give no meaningful numbers; so it works for thousands of ranks.
"""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

import torch
import torch.distributed as dist

from pipeline import strategies
from pipeline.errors import StudyError
from pipeline.machine.processes import at_once
from pipeline.models.build import build_model, recompute_blocks
from pipeline.parallel.types import Batch
from pipeline.precision import make_precision
from pipeline.resolved import ResolvedRun, resolve
from pipeline.training.optimiser import parts_of

Placements = dict[str, dict[str, list[str]]]
"""By kind and name, for each axis `replicate`, `shard DIM` or `partial`.

Kinds are `parameters`, `boundaries`, which are outputs of modules, and maybe `updates`.
"""


def propagate(run: ResolvedRun) -> Placements:
    """Place the tensors of rank 0; raises StudyError for a strategy that places none.

    The process must have no process group yet; it has none afterwards.
    """
    placements: Placements = _passed(run)[0].placements
    return placements


def alike(placements: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """Placements by name, those of equal layers of all blocks as one (`h.*.mlp`)."""
    groups: dict[str, dict[str, list[str]]] = {}
    for name, words in placements.items():
        groups.setdefault(re.sub(r"(?<=\.)\d+(?=\.|$)", "*", name), {})[name] = words
    merged: dict[str, list[str]] = {}
    for pattern, members in groups.items():
        same = len({tuple(words) for words in members.values()}) == 1
        merged |= {pattern: next(iter(members.values()))} if same else members
    return merged


def on_devices(run: ResolvedRun, count: int) -> ResolvedRun:
    """The run on so many devices, of which each has as many sequences as before.

    Raises StudyError where its axes or annotations do not fit them.
    """
    spec, work = run.spec, run.spec.workload
    world = replace(spec.world, nodes=count, ranks_per_node=1)
    batch = work.global_batch // run.layout.data_parallel
    batch *= run.strategy.layout(world).data_parallel
    spec = replace(spec, world=world, workload=replace(work, global_batch=batch))
    strategies.check([spec])
    return resolve(spec)


def seconds_to_place(runs: Sequence[ResolvedRun], rounds: int) -> list[list[float]]:
    """CPU seconds to place the tensors of each run, in so many rounds of all in a drawn order.

    Each is of a fresh process, since DTensor keeps the placements that it has found: from before
    the mesh until after the first forward and backward pass, less a second pass, which finds all
    that it needs and so is rank 0's own computation. On one thread; imports are done before.
    """
    torch.set_num_threads(1)
    torch.optim.AdamW([torch.zeros(1)])  # the first one imports torch's compiler
    for module in runs[0].strategy.modules:
        import_module(module)
    order = random.Random(0)

    def measure(run: ResolvedRun) -> float:
        def place() -> float:
            start, first, second = _passed(run, passes=2)[1]
            return first - start - (second - first)

        return float(at_once([place], [os.sched_getaffinity(0)])[0])

    taken = []
    for _ in range(rounds):
        drawn = order.sample(range(len(runs)), len(runs))
        seconds = {place: measure(runs[place]) for place in drawn}
        taken.append([seconds[place] for place in range(len(runs))])
    return taken


def _passed(run: ResolvedRun, passes: int = 1) -> tuple[Any, list[float]]:
    """The trainable after so many passes; CPU seconds at the start and after each pass."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    spec, strategy, layout = run.spec, run.strategy, run.layout
    strategy.check_precision(spec.precision)
    start, stop = layout.batch_slice(0, spec.workload.global_batch)
    sequences = (stop - start) // spec.workload.accumulation_steps
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=layout.num_processes)
    try:
        model = build_model(spec.model, spec.seed)
        recompute_blocks(model, spec.workload.recompute)
        precision = make_precision(spec.precision, "cpu")
        parts = parts_of(spec, model, layout, precision)
        marks = [time.process_time()]
        trainable: Any = strategy.build(parts)
        if not hasattr(trainable, "propagate"):
            raise StudyError(
                f"strategy {spec.strategy} places no tensors by propagation; "
                "name a cell of a strategy with annotations"
            )
        ids = torch.zeros((sequences, spec.model.context), dtype=torch.int64)
        for _ in range(passes):
            trainable.propagate(Batch(ids, ids))
            marks.append(time.process_time())
    finally:
        dist.destroy_process_group()
    return trainable, marks
