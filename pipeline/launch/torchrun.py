"""The commands that start a run's ranks: torchrun, one launcher process for each node.

On one machine N nodes are N launchers on the loopback, or emulated nodes whose ranks one process
forks (`emulated/`). Over a real network one command of the scheduler, such as `srun`, starts the
launcher on every node. It is the same for every strategy.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from pipeline.emulation.dilation import dilate
from pipeline.emulation.nodes import why_not
from pipeline.errors import StudyError
from pipeline.launch import preloaded, start
from pipeline.machine import addresses, inherited, limits
from pipeline.machine import image as container
from pipeline.machine.control_groups import usable_cores
from pipeline.parallel.mesh import Layout
from pipeline.study.spec import RunSpec, WorldSpec

NODE = ("-m", "pipeline.launch.slurm.node")
"""torchrun too, which asks the scheduler for the node's place."""

RANK_BYTES = 400 * 2**20
"""Memory of one forked rank besides what it shares with the others, generously."""


@dataclass(frozen=True)
class Place:
    """Where a run is started: this machine, or an allocation that starts with it.

    `scheduler` is the command that starts one process on each node of the allocation, `image` the
    file that the ranks run in. `port` is free at `address`, which the other nodes reach. `token`
    tells this launch from earlier ones of the same run (see `fence`). `done` are the steps that a
    checkpoint of an earlier launch has done: all ranks get it and resume from that step.
    `owner` is the key of the checkpoints, and `network` what `network_of` says, once it was asked.
    """

    num_cores: int
    port: int | str
    address: str = limits.LOOPBACK
    scheduler: tuple[str, ...] = ()
    image: Path | None = None
    token: str = ""
    done: int = 0
    owner: str = ""
    network: tuple[str, str | None] | None = None


@dataclass(frozen=True)
class Launch:
    """The commands to start, and the environment they share."""

    commands: tuple[tuple[str, ...], ...]
    environment: Mapping[str, str]
    threads_per_rank: int
    image_digest: str | None = None
    """What every rank must find within; None where the run may be on the host."""
    unsupported: str | None = None
    """Why the run cannot be started here; then there are no commands."""
    network: str = "loopback"
    """The network that the nodes really have; `network_reason` says why it is not the spec's."""
    network_reason: str | None = None
    token: str = ""
    """Token of this launch; see `pipeline.training.fence`."""


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
        """Where the ranks leave their parts."""
        return self.out / "ranks"

    @property
    def checkpoints(self) -> Path:
        """Where checkpoints lie."""
        return self.out / "checkpoints"

    @property
    def log(self) -> Path:
        """Output of the launchers and ranks."""
        return self.out / "log.txt"


def threads_per_rank(spec: RunSpec, layout: Layout, num_cores: int) -> int:
    """Threads of each rank: as the spec states, else a machine's cores shared by its ranks."""
    world = spec.world
    if world.threads_per_rank is not None:
        return world.threads_per_rank
    if world.cores_per_node is not None:
        return max(1, world.cores_per_node // layout.processes_per_node)
    return max(1, num_cores // layout.processes_per_machine(world))


def plan(spec: RunSpec, layout: Layout, paths: RunPaths, place: Place) -> Launch:
    """The commands of a run; raises LaunchError where its image cannot be had."""
    threads = threads_per_rank(spec, layout, place.num_cores)
    digest = container.required_digest(spec, place.image)
    network, why = place.network or network_of(spec.world)
    environment = _environment(spec, network, threads)
    launch = Launch((), environment, threads, digest, None, network, why, place.token)
    if spec.world.num_machines > 1 and not has_allocation(place.scheduler):
        reason = (
            f"needs {spec.world.num_machines} machines (cluster.network real) and there is no "
            "allocation; run it with `--profile workflow/profiles/slurm` or set cluster.network "
            "to loopback"
        )
        return replace(launch, unsupported=reason)
    if spec.world.real_time and (too_few := _not_in_real_time(spec.world, network)):
        return replace(launch, unsupported=too_few)
    if network == "emulated" and (too_many := _too_many_ranks(spec.world, layout)):
        return replace(launch, unsupported=too_many)
    return replace(launch, commands=commands(spec, layout, paths, place, digest, network))


def network_of(world: WorldSpec) -> tuple[str, str | None]:
    """The network that the run gets, and why it is not the spec's where it is another one."""
    if world.link is None:
        return world.network, None
    reason = why_not(world.link)
    return ("loopback", reason) if reason else (world.network, None)


def network_text(world: WorldSpec, network: str) -> str:
    """The network in words that the keys of checkpoints hold: on another one times are others."""
    if network != "emulated":
        return f"the {network} network"
    found = dilate(world, len(usable_cores()))
    return f"emulated nodes (copies {found.copies}, dilation {found.factor:g})"


def _not_in_real_time(world: WorldSpec, network: str) -> str | None:
    """Why the nodes cannot be made without dilation here, each on cores of its own."""
    needed, cores = world.nodes * (world.cores_per_node or 1), len(usable_cores())
    if network == "emulated" and needed <= cores:
        return None
    there = f"{cores} may be used" if needed > cores else "no emulated network is here"
    return (
        f"{world.nodes} nodes in real time need {needed} cores of their own and emulated links, "
        f"and {there}; how far emulated times are off is not measured"
    )


def _too_many_ranks(world: WorldSpec, layout: Layout) -> str | None:
    """Why the ranks of all copies of the nodes do not fit this machine's free memory."""
    count = dilate(world, len(usable_cores())).copies * layout.num_processes
    needed, there = count * RANK_BYTES / 2**30, psutil.virtual_memory().available / 2**30
    if needed <= there:
        return None
    return (
        f"{count} ranks on emulated nodes need about {needed:.1f} GiB of memory and {there:.1f} "
        "are free; lower cluster.nodes"
    )


def commands(
    spec: RunSpec,
    layout: Layout,
    paths: RunPaths,
    place: Place,
    digest: str | None,
    network: str,
) -> tuple[tuple[str, ...], ...]:
    """One command for each node, or a single one of the scheduler or the emulation for all."""
    several = spec.world.num_machines > 1
    if place.scheduler and not several:
        raise StudyError(
            f"{spec.run_id}: a run on one machine was given the scheduler's command "
            f"{place.scheduler[0]}; leave out what stands after `--`"
        )
    inside = _runtime(spec, paths, place)
    python = "python" if inside else sys.executable
    options = worker_options(paths, place, digest)
    threads = threads_per_rank(spec, layout, place.num_cores)
    loaded = not inside and not several and preloaded.is_named(spec, threads)
    if network == "emulated":
        return ((*inside, python, *start.words(preloaded.EMULATED, loaded=loaded), *options),)
    meeting = (
        f"--nnodes={spec.world.nodes}",
        f"--nproc-per-node={layout.processes_per_node}",
        f"--master-addr={place.address if several else limits.LOOPBACK}",
        f"--master-port={place.port}",
        # By itself torchrun leaves a folder in the temporary one for each start.
        f"--log-dir={paths.ranks / 'torchrun'}",
        "--max-restarts=0",
        *start.words(preloaded.RANK, loaded=loaded),
        *options,
    )
    if several:
        return ((*place.scheduler, *inside, python, *NODE, *meeting),)
    torchrun = (*inside, python, *start.words(preloaded.TORCHRUN, loaded=loaded))
    return tuple((*torchrun, f"--node-rank={node}", *meeting) for node in range(spec.world.nodes))


def _runtime(spec: RunSpec, paths: RunPaths, place: Place) -> tuple[str, ...]:
    """What enters the image; nothing where this process is inside one already."""
    if place.image is None or container.digest_from_within() is not None:
        return ()
    folders = (paths.spec.parent, paths.tokens, paths.out)
    return container.enter(place.image, device=spec.world.device, folders=folders)


def _environment(spec: RunSpec, network: str, threads: int) -> dict[str, str]:
    """The ranks' environment; a runtime carries it into the image."""
    stated = {**spec.environment, **inherited.threads(threads)}
    if network == "loopback":
        stated |= dict.fromkeys(inherited.INTERFACES, "lo")
    several = spec.world.num_machines > 1
    return inherited.for_ranks(os.environ, stated, over_network=several)


def worker_options(paths: RunPaths, place: Place, image_digest: str | None) -> tuple[str, ...]:
    """The options of a rank, the same below torchrun and horovodrun."""
    return (
        f"--spec={paths.spec}",
        f"--tokens={paths.tokens}",
        f"--out={paths.ranks}",
        f"--checkpoints={paths.checkpoints}",
        f"--resume-from={place.done}",
        f"--launch={place.token}",
        *([f"--owner={place.owner}"] if place.owner else []),
        *([f"--yardstick={paths.yardstick}"] if paths.yardstick else []),
        *([f"--image-digest={image_digest}"] if image_digest else []),
    )


def here(
    spec: RunSpec, num_cores: int, scheduler: tuple[str, ...] = (), image: Path | None = None
) -> Place:
    """This machine as the first node, with a port that is free at this moment."""
    several = spec.world.num_machines > 1 and has_allocation(scheduler)
    chosen = {**os.environ, **spec.environment}.get(addresses.INTERFACE)
    address = addresses.own_address(chosen) if several else limits.LOOPBACK
    return Place(num_cores, limits.free_port(address), address, scheduler, image)


def has_allocation(scheduler: tuple[str, ...]) -> bool:
    """Whether the scheduler's command has nodes to start on."""
    return bool(scheduler) and "SLURM_JOB_ID" in os.environ


def is_sent_again() -> bool:
    """Whether this is a job that who sent it sends again where it is lost.

    An allocation alone is none: a shell inside of one is, too.
    """
    return inherited.SENT_AGAIN in os.environ
