"""The commands that start a run's ranks: torchrun, one launcher process for each node.

On one machine N nodes are N launchers on the loopback, or emulated nodes whose ranks one process
forks (`emulated/`). Over a real network one command of the scheduler, such as `srun`, starts the
launcher on every node. It is the same for every strategy.
"""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil

from pipeline.emulation.dilation import dilate
from pipeline.emulation.nodes import why_not
from pipeline.errors import SamestepError, StudyError
from pipeline.launch import preloaded
from pipeline.machine import image as container
from pipeline.machine import inherited, limits
from pipeline.machine.limits import usable_cores
from pipeline.machine.site import PYXIS, Site
from pipeline.parallel.mesh import Layout
from pipeline.resolved import ResolvedRun
from pipeline.training import checkpoint, step_files

STEP = ("srun", "--overlap", "--nodes=1", "--ntasks=1", "--cpu-bind=none")
"""A step of this job on this machine: pyxis enters an image by nothing else."""

RANK_BYTES = 400 * 2**20
"""Memory of one forked rank besides what it shares with the others, generously."""


@dataclass(frozen=True)
class StartPlace:
    """The place of a start: this machine, or an allocation that starts with it.

    `scheduler` is the command that starts one process on each node of the allocation, `image` the
    file that the ranks run in, by what `site` says. `port` is free at `address`, which the other
    nodes reach. `token` tells this launch from earlier ones of the same run (see `fence`). `done`
    are the steps of the checkpoint that all ranks resume from, `owner` the key of the checkpoints.
    """

    num_cores: int
    port: int | str
    address: str = limits.LOOPBACK
    scheduler: tuple[str, ...] = ()
    image: Path | None = None
    token: str = ""
    done: int = 0
    owner: str = ""
    site: Site = field(default_factory=Site)


@dataclass(frozen=True)
class RunPaths:
    """Files of one run: its spec, the token shards, and the folder of its record.

    `yardstick` is the study's, for runs that count CPU seconds by it.
    """

    spec: Path
    tokens: Path
    out: Path
    yardstick: Path | None = None

    @property
    def ranks(self) -> Path:
        """Folder of the ranks' parts."""
        return self.out / "ranks"

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints."""
        return self.out / "checkpoints"

    @property
    def log(self) -> Path:
        """Output of the launchers and ranks."""
        return self.out / "log.txt"

    def clear(self, layout: Layout, owner: str, *, keep_log: bool = False) -> tuple[int, list[str]]:
        """Drop what an earlier start left, but for good checkpoints of ours and their step files.

        A good checkpoint is whole, of `owner`, and has the rows of its steps in every rank's file,
        which a node that lost its power may lack. Returns the steps of the newest good one, else 0,
        and a line on each that is not used. Raises SamestepError where the folder cannot be used.
        """
        refused, good = list[str](), 0
        try:
            for done in checkpoint.steps(self.checkpoints):
                fault = checkpoint.fault(self.checkpoints, done, owner)
                for rank in range(layout.num_processes if fault is None else 0):
                    kept = step_files.whole_steps(self.ranks, rank, done)
                    if kept < done:
                        fault = f"{step_files.path_of(self.ranks, rank).name} ends at step {kept}"
                        break
                if fault is None:
                    good = done
                    break
                refused.append(f"the checkpoint of step {done} is not used: {fault}")
                checkpoint.drop(self.checkpoints, done)
            if not good:
                shutil.rmtree(self.checkpoints, ignore_errors=True)
                shutil.rmtree(self.ranks, ignore_errors=True)
                refused += ["no good checkpoint is left, the run starts anew"] if refused else []
            self.ranks.mkdir(parents=True, exist_ok=True)
            half_written = self.out.glob(".*.tmp*")
            for left in (self.out / "run.json", *half_written, *([] if keep_log else [self.log])):
                left.unlink(missing_ok=True)
            for left in self.ranks.iterdir():
                if left.is_dir():
                    shutil.rmtree(left)
                elif not step_files.is_one(left):
                    left.unlink()
        except OSError as error:
            raise SamestepError(
                f"cannot use {self.out} ({error.strerror}); fix it or free space"
            ) from None
        return good, refused


def on_this_machine(run: ResolvedRun) -> ResolvedRun:
    """The run on the network that it gets here: the loopback where nodes cannot be emulated."""
    reason = why_not(run.link) if run.link else None
    network = "loopback" if reason else run.spec.world.network
    return replace(run, network=network, network_reason=reason)


def network_text(run: ResolvedRun) -> str:
    """The network in words that the keys of checkpoints hold: on another one times are others."""
    if run.network != "emulated":
        return f"the {run.network} network"
    return f"emulated nodes (dilation {dilate(run.spec.world, len(usable_cores())):g})"


def why_unsupported(run: ResolvedRun, place: StartPlace) -> str | None:
    """Reason why the run cannot start: no allocation, too few cores, or too little memory."""
    world, cores, count = run.spec.world, len(usable_cores()), run.layout.num_processes
    is_emulated, needed = run.network == "emulated", world.nodes * (world.cores_per_node or 1)
    there = f"{cores} may be used" if needed > cores else "no emulated network is here"
    wanted, free = count * RANK_BYTES / 2**30, psutil.virtual_memory().available / 2**30
    reasons = [
        (world.num_machines > 1 and not has_allocation(place.scheduler),
         f"needs {world.num_machines} machines (cluster.network real) and there is no allocation; "
         "run it with `--profile workflow/profiles/slurm` or set cluster.network to loopback"),
        # Without dilation each node has cores of its own.
        (world.real_time and (needed > cores or not is_emulated),
         f"{world.nodes} nodes in real time need {needed} cores of their own and emulated links, "
         f"and {there}; how far emulated times are off is not measured"),
        (is_emulated and wanted > free,
         f"{count} ranks on emulated nodes need about {wanted:.1f} GiB of memory and {free:.1f} "
         "are free; lower cluster.nodes"),
    ]  # fmt: skip
    return next((reason for is_so, reason in reasons if is_so), None)


def commands(run: ResolvedRun, paths: RunPaths, place: StartPlace) -> tuple[tuple[str, ...], ...]:
    """One command for each node, or one of scheduler or emulation; LaunchError without image."""
    world, several = run.spec.world, run.spec.world.num_machines > 1
    if place.scheduler and not several:
        raise StudyError(
            f"{run.spec.run_id}: a run on one machine was given the scheduler's command "
            f"{place.scheduler[0]}; leave out what stands after `--`"
        )
    digest = container.required_digest(run.spec, place.image)
    inside = container.digest_from_within()
    enter: tuple[str, ...] = ()
    if place.image is not None and inside is None:
        folders = (paths.spec.parent, paths.tokens, paths.out)
        of_site = place.site.variables({}, over_network=several)
        variables = {k: run.spec.environment.get(k, value) for k, value in of_site.items()}
        enter = container.enter(
            place.image, place.site, device=world.device, folders=folders, variables=variables
        )
        if place.site.runtime == PYXIS and not several:
            enter = (*STEP, *enter)
    python = "python" if enter else sys.executable  # the image has its own
    # An image has the working folder by its real path, and the shell may name it by a link.
    stop = os.path.realpath(os.environ[inherited.STOP]) if inherited.STOP in os.environ else ""
    options = (
        f"--spec={paths.spec}",
        f"--tokens={paths.tokens}",
        f"--out={paths.ranks}",
        f"--checkpoints={paths.checkpoints}",
        f"--resume-from={place.done}",
        f"--launch={place.token}",
        *([f"--owner={place.owner}"] if place.owner else []),
        *([f"--stop-file={stop}"] if stop else []),
        *([f"--yardstick={paths.yardstick}"] if paths.yardstick else []),
        *([f"--image-digest={digest}"] if digest else []),
    )
    threads = run.threads_on(place.num_cores)
    # Inside an image there is no preloaded process.
    alone = not enter and not several and inside is None
    loaded = alone and bool(os.environ.get(preloaded.variable(threads)))
    if run.network == "emulated":
        return ((*enter, python, *preloaded.words(preloaded.EMULATED, loaded=loaded), *options),)
    meeting = (
        f"--nnodes={world.nodes}",
        f"--nproc-per-node={run.layout.processes_per_node}",
        f"--master-addr={place.address if several else limits.LOOPBACK}",
        f"--master-port={place.port}",
        # By itself torchrun leaves a folder in the temporary one for each start.
        f"--log-dir={paths.ranks / 'torchrun'}",
        "--max-restarts=0",
        *preloaded.words(preloaded.RANK, loaded=loaded),
        *options,
    )
    if several:
        # Torchrun too, which asks the scheduler for the node's place.
        on_node = (*enter, python, "-m", "pipeline.launch.slurm.node", *meeting)
        return ((*place.scheduler, *on_node),)
    torchrun = (*enter, python, *preloaded.words(preloaded.TORCHRUN, loaded=loaded))
    return tuple((*torchrun, f"--node-rank={node}", *meeting) for node in range(world.nodes))


def environment(run: ResolvedRun, threads: int, site: Site) -> dict[str, str]:
    """The ranks' environment: what the study states comes before what the site does."""
    stated = site.variables(os.environ, over_network=run.spec.world.num_machines > 1)
    stated |= {**run.spec.environment, **inherited.threads(threads)}
    if run.network == "loopback":  # which the site's interfaces do not lead to
        stated |= dict.fromkeys(inherited.INTERFACES, "lo")
    caller = {**os.environ, **({"TMPDIR": site.folder} if site.folder else {})}
    return inherited.for_ranks(caller, stated)


def has_allocation(scheduler: tuple[str, ...]) -> bool:
    """True where the scheduler's command has nodes to start on."""
    return bool(scheduler) and "SLURM_JOB_ID" in os.environ
