"""A real SLURM cluster of a few nodes on this one machine, which ends with the process around it.

    with SlurmCluster(folder, nodes=4) as cluster:
        cluster.run(["srun", "-N4", "hostname"], cwd=folder)
        cluster.kill_slurmd("wn3")

munged, slurmctld and the commands run on the head, one slurmd on each node; see nodes.py. Their
configuration hides the machine's own inside only. Needs root and Debian's packages slurm-wlm, munge
and iproute2; `why_missing` says what is missing.

Two things differ from a site. There is no accounting database. And SLURM follows processes by their
parents, not by control groups: a process whose parent has died, and that handles SIGTERM, outlives
its job.
"""

from __future__ import annotations

import secrets
from pathlib import Path

from tests.system import nodes as emulated
from tests.system.nodes import HEAD, HEAD_HOST, NETWORK, ClusterError, Nodes

__all__ = ["ClusterError", "SlurmCluster", "why_missing"]

TOOLS = emulated.TOOLS | {
    "munge": ("munged",),
    "slurm-wlm": ("slurmctld", "slurmd", "sbatch", "srun", "sinfo"),
}
# What a daemon keeps lies on the private /run: the paths of job steps' sockets must be short.
CONF = f"""\
ClusterName=samestep
SlurmctldHost={HEAD}({NETWORK}.{HEAD_HOST})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
StateSaveLocation=/run/slurm/state
SlurmdSpoolDir=/run/slurm/%n
SlurmctldPidFile=/run/slurm/slurmctld.pid
SlurmdPidFile=/run/slurm/%n.pid
AccountingStorageType=accounting_storage/none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=1000
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=2,sched_interval=5
SlurmdParameters=config_overrides
ReturnToService=2
MpiDefault=none
MinJobAge=600
# Seconds until a silent node is down (checked every 15), from SIGTERM to SIGKILL, and until SLURM
# starts a job again whose node was lost; its own values are 300, 30 and 120.
SlurmdTimeout=10
KillWait=5
AuthInfo=cred_expire=20
"""


def why_missing() -> str | None:
    """Why no cluster can start here, or None."""
    return emulated.why_missing(TOOLS)


class SlurmCluster(Nodes):
    """Nodes of two cores and 8000 MB each.

    Partitions: `main`, the default, and `urgent`, whose jobs preempt those of `main`. `folder`
    receives the configuration, the logs and `log/jobs.txt` with a line for every end of a job.
    """

    def __init__(self, folder: Path, nodes: int = 4) -> None:
        super().__init__(folder, nodes)

    def kill_slurmd(self, node: str) -> None:
        """Kill a node's daemon alone; its job steps live on."""
        self.kill_processes(node, "slurmd")

    def restart_node(self, node: str) -> None:
        """Start a node's daemon anew."""
        self.run(["slurmd"], node=node)

    def states(self) -> dict[str, str]:
        """State of every node in SLURM's short words: idle, alloc, down, down*, ..."""
        lines = self.run(["sinfo", "--noheader", "--Node", "--partition=main", "--format=%N %t"])
        return dict(line.split() for line in lines.stdout.splitlines())

    def jobs(self) -> dict[str, str]:
        """State of every job of the last ten minutes by its number: RUNNING, NODE_FAIL, ..."""
        lines = self.run(["squeue", "--noheader", "--states=all", "--format=%i %T"])
        return dict(line.split() for line in lines.stdout.splitlines())

    def wait_idle(self, seconds: float = 60) -> None:
        """Wait until all nodes are idle."""
        idle = {name: "idle" for name in self.names}
        self.wait_for("all nodes idle", lambda: self.states() == idle, seconds)

    def _start(self) -> None:
        super()._start()
        etc = self.folder / "etc"
        self._write_configuration(etc)
        for target in ("/var/log/munge", "/var/lib/munge"):
            self.run(["mount", "-t", "tmpfs", "-o", "mode=0755", "tmpfs", target])
        self.run(["mount", "--bind", str(etc), "/etc/slurm"])
        spools = [f"/run/slurm/{name}" for name in ("state", *self.names)]
        self.run(["mkdir", "-p", "/run/munge", *spools])
        self.run(["munged", f"--key-file={etc / 'munge.key'}", "--force"])
        self.run(["slurmctld", "-c"])
        for name in self.names:
            self.run(["slurmd"], node=name)
        self.wait_idle()

    def _write_configuration(self, etc: Path) -> None:
        log = self.folder / "log"
        log.mkdir(exist_ok=True)
        lines = [
            CONF,
            f"SlurmctldLogFile={log}/slurmctld.log",
            f"SlurmdLogFile={log}/slurmd.%n.log",
            "JobCompType=jobcomp/filetxt",
            f"JobCompLoc={log}/jobs.txt",
        ]
        shape = "CPUs=2 Sockets=1 CoresPerSocket=2 ThreadsPerCore=1 RealMemory=8000"
        lines += [f"NodeName={name} NodeAddr={self.address(name)} {shape}" for name in self.names]
        lines += [
            "PartitionName=main Nodes=ALL Default=YES MaxTime=UNLIMITED",
            "PartitionName=urgent Nodes=ALL PriorityTier=2",
        ]
        (etc / "slurm.conf").write_text("\n".join(lines) + "\n")
        key = etc / "munge.key"
        key.touch(0o600)
        key.write_bytes(secrets.token_bytes(128))
