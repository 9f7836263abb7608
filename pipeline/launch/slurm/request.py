"""Resources that a run asks of a scheduler: how much by its spec, and how by the site file."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.machine.limits import usable_cores
from pipeline.machine.site import Site
from pipeline.models import num_parameters
from pipeline.planner.memory import predict
from pipeline.resolved import ResolvedRun, first_runs
from pipeline.study.study import Study

MINUTES_BESIDE = 10
"""Over the run's own time limit: start, checks of the tokens, writing the record."""

PROCESS_MB, CUDA_PROCESS_MB = 2048, 6144
"""Python and torch of one rank: with the pages of the token shards, and with a CUDA context, NCCL
and pinned buffers."""

COPY_BYTES = 12
"""A parameter, fp32: its weight while it is broadcast, and weight and moments for a checkpoint.

Rank 0 writes all of them where every rank holds the same; where the model is cut, less.
"""

HOST_BYTES = 28
"""A parameter on the host of a GPU: what a rank starts from and what it writes, generously."""

STOP_SIGNAL = "--signal=B:USR1@120"
"""120 s before its end, or at its preemption, a job hears it (`envs/begin_job.sh`)."""

RESERVE = 1.25
"""Over the predicted peak: what the allocator keeps, and what the prediction misses."""


@dataclass(frozen=True)
class Request:
    """Resources of one run; all but `nodes` are for each node."""

    nodes: int
    gpus: int
    memory_mb: int
    minutes: int
    site: Site

    @property
    def gpu_option(self) -> str:
        """The option for the GPUs of a node as the site wants it; empty without GPUs."""
        return f"{self.site.gpus.removesuffix('N')}{self.gpus}" if self.gpus else ""

    @property
    def gres(self) -> str:
        """The GPUs as the resource `gres` of Snakemake's executor, which refuses the option."""
        name, _, value = self.gpu_option.partition("=")
        return value if name == "--gres" else ""

    @property
    def cpus(self) -> int:
        """Cores of a node that others may use too; -1 for all of a node of one's own."""
        return self.site.cpus_per_node or -1

    @property
    def slurm_extra(self) -> str:
        """sbatch's options for which Snakemake's executor has no resource."""
        whole = "" if self.site.cpus_per_node else "--exclusive"
        return " ".join(filter(None, (whole, "" if self.gres else self.gpu_option, STOP_SIGNAL)))

    @property
    def srun(self) -> tuple[str, ...]:
        """The command that starts one launcher on each node, with all that the job has there."""
        return (
            "srun", f"--nodes={self.nodes}", f"--ntasks={self.nodes}", "--ntasks-per-node=1",
            *([self.gpu_option] if self.gpus else []), "--cpu-bind=none", "--kill-on-bad-exit=1",
        )  # fmt: skip


def request(run: ResolvedRun, site: Site) -> Request:
    """Nodes, GPUs, memory and time of one run."""
    spec, count = run.spec, num_parameters(run.spec.model)
    if spec.world.device == "cuda":
        needed, process_mb = count * HOST_BYTES, CUDA_PROCESS_MB
    else:
        # The root needs the most wherever ranks differ.
        needed = round(RESERVE * predict(run).model_peak) + count * COPY_BYTES
        process_mb = PROCESS_MB
    model_mb = math.ceil(needed / 2**20 / 256) * 256  # in steps
    minutes = math.ceil(spec.timeout_seconds / 60) + MINUTES_BESIDE
    return Request(
        nodes=spec.world.num_machines,
        gpus=run.gpus_per_machine,
        memory_mb=run.ranks_per_machine * (model_mb + process_mb),
        minutes=min(minutes, site.max_minutes or minutes),
        site=site,
    )


def allocation(site: Site, nodes: int, requests: Sequence[Request]) -> tuple[str, ...]:
    """The command sbatch for a job on so many nodes that holds all these runs, without its script.

    Without `max_minutes` its time is the partition's. It is queued again at its end.
    """
    most = max(requests, key=lambda one: one.gpus)
    memory = max(one.memory_mb for one in requests)
    asked = {
        "nodes": nodes,
        "partition": site.partition,
        "account": site.account,
        "qos": site.qos,
        "constraint": site.constraint,
        "time": site.max_minutes and min(site.max_minutes, sum(one.minutes for one in requests)),
        "cpus-per-task": site.cpus_per_node,
        "ntasks-per-node": site.cpus_per_node and 1,
        # Of a node of one's own all of it.
        "mem": memory if site.cpus_per_node else 0,
    }
    return (
        "sbatch",
        *(f"--{name}={value}" for name, value in asked.items() if value is not None),
        *([] if site.cpus_per_node else ["--exclusive"]),
        *([most.gpu_option] if most.gpus else []),
    )


def command_lines(study: Study, site: Site, image: Path | None) -> Iterator[str]:
    """The commands of the first run of each cell and node count, below a line on what it asks for.

    PORT, FIRST_NODE and TOKEN stand for what a start decides.
    """
    from pipeline.launch.torchrun import RunPaths, StartPlace, commands  # not for Snakemake's jobs

    results = Path("results", study.name).resolve()
    for run in first_runs(study):
        spec, asked = run.spec, request(run, site)
        yield (
            f"# {spec.run_id}: nodes {asked.nodes}, on each {asked.gpus} GPUs and "
            f"{asked.memory_mb} MiB; {asked.minutes} minutes"
        )
        folder = results / "runs" / spec.folder
        paths = RunPaths(folder / "spec.json", results / "tokens", folder)
        scheduler = asked.srun if spec.world.num_machines > 1 else ()
        place = StartPlace(
            len(usable_cores()), "PORT", "FIRST_NODE", scheduler, image, "TOKEN", site=site
        )
        yield from map(shlex.join, commands(run, paths, place))
