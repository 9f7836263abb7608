"""A real SLURM cluster of a few nodes on this one machine, which ends with the process around it.

    with SlurmCluster(folder) as cluster:
        cluster.run(["srun", "-N4", "hostname"], cwd=folder)
        cluster.kill_slurmd("wn3")

A head and the nodes wn1, wn2, ... share one private set of namespaces: mounts, processes, host
names and network. Inside, every node has a network of its own on a bridge, so that no node reaches
another one's loopback, and finds the others by name. Files are shared, as on a cluster with a
shared file system. Process 1 of the set, the keeper, reads from a pipe that this process holds. The
kernel closes the pipe when this process ends, in whatever way, and with the keeper end all
processes, mounts and networks of the set. Nothing is written outside `folder`.

munged, slurmctld and the commands run on the head, one slurmd on each node. Their configuration
hides the machine's own inside only. Needs root and Debian's packages slurm-wlm, munge and iproute2;
`why_missing` says what is missing.

Two things differ from a site. There is no accounting database. And SLURM follows processes by their
parents, not by control groups: a process whose parent has died, and that handles SIGTERM, outlives
its job.
"""

import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from tests.programs import ran

TOOLS = {
    "util-linux": ("unshare", "nsenter"),
    "iproute2": ("ip",),
    "munge": ("munged",),
    "slurm-wlm": ("slurmctld", "slurmd", "sbatch", "srun", "sinfo"),
}
SYSTEM_PATH = "/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin"
UNSHARE = "unshare --mount --net --uts --ipc --pid --fork --kill-child --mount-proc".split()
# Ignoring SIGCHLD reaps what daemons leave behind. The keeper starts nothing that would inherit it.
KEEPER = """
import signal, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
print("up", flush=True)
sys.stdin.read()
"""
HEAD, NETWORK, HEAD_HOST = "head", "10.77.0", 254
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
    if os.geteuid() != 0:
        return "nodes in namespaces need root"
    for package, commands in TOOLS.items():
        for command in commands:
            if shutil.which(command, path=environment()["PATH"]) is None:
                return f"no {command}: needs Debian's package {package}"
    probe = [*UNSHARE, "ip", "link", "add", "probe", "type", "bridge"]
    done = ran(probe, env=environment())
    return f"no namespaces and bridges here: {done.stderr.strip()}" if done.returncode else None


def environment(env: Mapping[str, str] | None = None) -> dict[str, str]:
    """`env`, or this process's own environment, with the folders of daemons on PATH."""
    base = dict(os.environ if env is None else env)
    return base | {"PATH": f"{base.get('PATH', '')}:{SYSTEM_PATH}"}


class SlurmCluster:
    """Four nodes of two cores and 8000 MB each.

    Partitions: `main`, the default, and `urgent`, whose jobs preempt those of `main`. `folder`
    receives the configuration, the logs and `log/jobs.txt` with a line for every end of a job.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self.names = [f"wn{i}" for i in range(1, 5)]
        self._keeper: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def run(
        self, command: Sequence[str], *, node: str | None = None, cwd: Path | None = None,
        env: Mapping[str, str] | None = None, check: bool = True, timeout: float = 120,
    ) -> subprocess.CompletedProcess[str]:  # fmt: skip
        """Run a command on the head, or on a node, and keep what it prints.

        Raises AssertionError, with the logs' tails, where it fails and `check` is true.
        """
        done = ran(
            self._inside(command, node, cwd),
            env=environment(env),
            stdin=subprocess.DEVNULL,
            timeout=timeout,
        )
        said = done.stdout + done.stderr
        assert not check or not done.returncode, f"{list(command)}: {said}{self.logs()}"
        return done

    def popen(
        self, command: Sequence[str], *, cwd: Path, env: Mapping[str, str], **options: Any
    ) -> subprocess.Popen[str]:
        """Start a command on the head; `options` are those of `subprocess.Popen`.

        The process started here only waits for the one inside: signal both with `os.killpg`.
        """
        inside = self._inside(command, None, cwd)
        return subprocess.Popen(
            inside, env=environment(env), text=True, start_new_session=True, **options
        )

    def wait_for(self, what: str, holds: Callable[[], bool], seconds: float = 60) -> None:
        """Wait until something holds; raises AssertionError where it does not after `seconds`."""
        end = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < end, f"not within {seconds:g} s: {what}{self.logs()}"
            time.sleep(0.1)

    def logs(self, lines: int = 15) -> str:
        """The last lines of every log in `folder`, for the message of a failure."""
        tails = [""]
        for path in sorted((self.folder / "log").glob("*.log")):
            tails += [f"== {path.name}", *path.read_text(errors="replace").splitlines()[-lines:]]
        return "\n".join(tails)

    def kill_slurmd(self, node: str) -> None:
        """Kill a node's daemon alone; its job steps live on."""
        inode = self.run(["stat", "--format=%i", f"/run/netns/{node}"]).stdout
        network = f"net:[{inode.strip()}]"
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it has ended
                name = (process / "comm").read_text().strip()
                if name == "slurmd" and str((process / "ns/net").readlink()) == network:
                    os.kill(int(process.name), signal.SIGKILL)

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

    def wait_idle(self) -> None:
        """Wait until all nodes are idle."""
        idle = dict.fromkeys(self.names, "idle")
        self.wait_for("all nodes idle", lambda: self.states() == idle)

    def close(self) -> None:
        """End every process of the nodes; networks, mounts and private files go with them."""
        if self._keeper is None:
            return
        assert self._keeper.stdin is not None and self._keeper.stdout is not None
        self._keeper.stdin.close()
        try:
            self._keeper.wait(10)
        except subprocess.TimeoutExpired:
            self._keeper.kill()
            self._keeper.wait()
        self._keeper.stdout.close()
        self._keeper = None

    def _start(self) -> None:
        etc = self.folder / "etc"
        etc.mkdir(parents=True, exist_ok=True)
        self._keeper = subprocess.Popen(
            [*UNSHARE, sys.executable, "-I", "-c", KEEPER], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True, env=environment(), start_new_session=True,
        )  # fmt: skip
        assert self._keeper.stdout is not None
        assert self._keeper.stdout.readline() == "up\n", why_missing()
        for target in ("/run", "/dev/shm"):
            self.run(["mount", "-t", "tmpfs", "-o", "mode=1777", "tmpfs", target])
        self._write_configuration(etc)
        self._make_networks()
        for target in ("/var/log/munge", "/var/lib/munge"):
            self.run(["mount", "-t", "tmpfs", "-o", "mode=0755", "tmpfs", target])
        self.run(["mount", "--bind", str(etc), "/etc/slurm"])
        spools = [f"/run/slurm/{name}" for name in ("state", *self.names)]
        self.run(["mkdir", "-p", "/run/munge", *spools])
        self.run(["munged", f"--key-file={etc / 'munge.key'}", "--force"])
        self.run(["slurmctld", "-c"])
        for name in self.names:
            self.restart_node(name)
        self.wait_idle()

    def _address(self, node: str) -> str:
        return f"{NETWORK}.{self.names.index(node) + 1}"

    def _make_networks(self) -> None:
        """Names of the hosts, and a network of each node on a bridge."""
        hosts = ["127.0.0.1 localhost", f"{NETWORK}.{HEAD_HOST} {HEAD}"]
        hosts += [f"{self._address(name)} {name}" for name in self.names]
        path = self.folder / "etc" / "hosts"
        path.write_text("\n".join(hosts) + "\n")
        self.run(["mount", "--bind", str(path), "/etc/hosts"])
        self.run(["hostname", HEAD])
        self.run(["mkdir", "/run/netns", "/run/uts"])
        commands = ["link set lo up", "link add bridge0 type bridge",
                    f"addr add {NETWORK}.{HEAD_HOST}/24 dev bridge0",
                    "link set bridge0 up"]  # fmt: skip
        for name in self.names:
            commands += [f"netns add {name}",
                         f"link add port-{name} type veth peer name eth0 netns {name}",
                         f"link set port-{name} master bridge0 up",
                         f"-n {name} link set lo up",
                         f"-n {name} addr add {self._address(name)}/24 dev eth0",
                         f"-n {name} link set eth0 up"]  # fmt: skip
        for words in commands:
            self.run(["ip", *words.split()])
        for name in self.names:
            self.run(["touch", f"/run/uts/{name}"])
            self.run(["unshare", f"--uts=/run/uts/{name}", "hostname", name])

    def _inside(self, command: Sequence[str], node: str | None, cwd: Path | None) -> list[str]:
        assert self._keeper is not None, "use the cluster in a with block"
        pid = self._keeper.pid
        enter = ["nsenter", f"--target={pid}", "--mount", "--net", "--uts", "--ipc"]
        enter.append(f"--pid=/proc/{pid}/ns/pid_for_children")
        if node is not None:
            enter += ["nsenter", f"--net=/run/netns/{node}", f"--uts=/run/uts/{node}"]
        return [*enter, "env", f"--chdir={cwd or self.folder}", *command]

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
        lines += [f"NodeName={name} NodeAddr={self._address(name)} {shape}" for name in self.names]
        lines += [
            "PartitionName=main Nodes=ALL Default=YES MaxTime=UNLIMITED",
            "PartitionName=urgent Nodes=ALL PriorityTier=2",
        ]
        (etc / "slurm.conf").write_text("\n".join(lines) + "\n")
        key = etc / "munge.key"
        key.touch(0o600)
        key.write_bytes(secrets.token_bytes(128))
