"""Resources that a run asks of a cluster's scheduler, computed from its spec and nothing else."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pipeline.models import num_parameters
from pipeline.planner.memory import predict
from pipeline.resolved import ResolvedRun

GIBIBYTE_MB = 1024
MINUTES_BESIDE = 10
"""Over the run's own time limit: start, checks of the tokens, writing the record."""

PROCESS_MB = 2 * GIBIBYTE_MB
"""Python and torch of one rank, with the pages of the token shards."""

CUDA_PROCESS_MB = 6 * GIBIBYTE_MB
"""Python and torch of one rank with a CUDA context, NCCL and pinned buffers."""

COPY_BYTES = 12
"""A parameter, fp32: its weight while it is broadcast, and weight and moments for a checkpoint.

Rank 0 writes all of them where every rank holds the same; where the model is cut, less.
"""

HOST_BYTES = 28
"""A parameter on the host of a GPU: what a rank starts from and what it writes, generously."""

STOP_SIGNAL = "--signal=B:USR1@120"
"""120 s before its end, or at its preemption, a job hears it (`envs/checkpoint_on_signal.sh`)."""

RESERVE = 1.25
"""Over the predicted peak: what the allocator keeps, and what the prediction misses."""


@dataclass(frozen=True)
class Request:
    """Resources of one run; all but `nodes` are for each node. The nodes are not shared."""

    nodes: int
    gpus: int
    memory_mb: int
    minutes: int

    @property
    def slurm_extra(self) -> str:
        """sbatch's options for which Snakemake's executor has no resource."""
        gpus = f" --gpus-per-node={self.gpus}" if self.gpus else ""
        return f"--exclusive{gpus} {STOP_SIGNAL}"

    @property
    def srun(self) -> tuple[str, ...]:
        """The command that starts one launcher on each node, with all that the node has."""
        return (
            "srun",
            f"--nodes={self.nodes}",
            f"--ntasks={self.nodes}",
            "--ntasks-per-node=1",
            *([f"--gpus-per-node={self.gpus}"] if self.gpus else []),
            "--cpu-bind=none",
            "--kill-on-bad-exit=1",
        )


def request(run: ResolvedRun) -> Request:
    """Nodes, GPUs, memory and time of one run."""
    spec, count = run.spec, num_parameters(run.spec.model)
    if spec.world.device == "cuda":
        rank_mb = _steps(count * HOST_BYTES) + CUDA_PROCESS_MB
    else:
        # The root needs the most wherever ranks differ.
        peak = predict(spec).model_peak
        rank_mb = _steps(round(RESERVE * peak) + count * COPY_BYTES) + PROCESS_MB
    return Request(
        nodes=spec.world.num_machines,
        gpus=run.gpus_per_machine,
        memory_mb=run.ranks_per_machine * rank_mb,
        minutes=math.ceil(spec.timeout_seconds / 60) + MINUTES_BESIDE,
    )


def _steps(num_bytes: int) -> int:
    """MiB in steps of 256, rounded up."""
    return math.ceil(num_bytes / 2**20 / 256) * 256
