"""DTensor's placements of the tensors of a run, by one process without its ranks.

One micro-batch of rank 0 goes through the model on torch's fake process group, whose collectives
send nothing and give no meaningful numbers; so it works for thousands of ranks.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from pipeline.errors import StudyError
from pipeline.models.build import build_model, recompute_blocks
from pipeline.parallel.types import Batch
from pipeline.precision import make_precision
from pipeline.resolved import ResolvedRun
from pipeline.training.optimiser import parts_of

Placements = dict[str, dict[str, list[str]]]
"""`parameters` and `boundaries`: by name, for each axis `replicate`, `shard DIM` or `partial`."""


def propagate(run: ResolvedRun) -> Placements:
    """Place the tensors of rank 0; raises StudyError for a strategy that places none.

    The process must have no process group yet; it has none afterwards.
    """
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
        trainable: Any = strategy.build(parts_of(spec, model, layout, precision))
        if not hasattr(trainable, "propagate"):
            raise StudyError(
                f"strategy {spec.strategy} places no tensors by propagation; "
                "name a cell of a strategy with annotations"
            )
        ids = torch.zeros((sequences, spec.model.context), dtype=torch.int64)
        trainable.propagate(Batch(ids, ids))
    finally:
        dist.destroy_process_group()
    placements: Placements = trainable.placements
    return placements
