"""The SLURM cluster of the system tests: it is real, its nodes die and return, nothing is left."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.slurm_cluster import SlurmCluster

pytestmark = pytest.mark.system

ALL_IDLE = {f"wn{i}": "idle" for i in range(1, 5)}
# Task 0 listens on all addresses of its node; task 1 calls it by name, then calls its own loopback.
MEET = """
import os, socket, sys
if os.environ["SLURM_PROCID"] == "0":
    with socket.create_server(("", 29600)) as server:
        peer, address = server.accept()
        with peer:
            peer.sendall(f"{socket.gethostname()} met {address[0]}".encode())
else:
    while True:
        try:
            peer = socket.create_connection((sys.argv[1], 29600), timeout=5)
        except ConnectionRefusedError:
            continue
        with peer:
            print(peer.recv(100).decode(), "at", peer.getpeername()[0])
        break
    try:
        socket.create_connection(("127.0.0.1", 29600), timeout=5)
    except ConnectionRefusedError:
        print("loopback refused")
"""
HOLDER = """
import sys
from pathlib import Path
from tests.system.slurm_cluster import SlurmCluster
with SlurmCluster(Path(sys.argv[1]), nodes=2) as cluster:
    cluster.run(["sbatch", "--output=/dev/null", "--wrap=sleep 1000"])
    cluster.wait_for("job", lambda: cluster.jobs() == {"1": "RUNNING"})
    print("up", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def cluster(slurm_cluster: SlurmCluster) -> Iterator[SlurmCluster]:
    slurm_cluster.wait_idle()
    yield slurm_cluster
    slurm_cluster.run(["scancel", "--user=root"])
    for name, state in slurm_cluster.states().items():
        if state.startswith("down"):
            slurm_cluster.restart_node(name)


def test_four_nodes_are_idle_and_every_one_runs_a_task(cluster: SlurmCluster) -> None:
    assert cluster.states() == ALL_IDLE
    done = cluster.run(["srun", "-N4", "--ntasks-per-node=1", "hostname"])
    assert sorted(done.stdout.split()) == sorted(ALL_IDLE)


def test_nodes_meet_by_name_and_not_over_the_loopback(
    cluster: SlurmCluster, tmp_path: Path
) -> None:
    script = tmp_path / "meet.py"
    script.write_text(MEET)
    done = cluster.run(
        ["srun", "-N2", "-n2", "--nodelist=wn2,wn3", sys.executable, str(script), "wn2"]
    )
    expected = f"wn2 met {cluster.address('wn3')} at {cluster.address('wn2')}"
    assert done.stdout.splitlines() == [expected, "loopback refused"]


def test_a_batch_job_keeps_folder_environment_and_gpus(
    cluster: SlurmCluster, tmp_path: Path
) -> None:
    command = 'echo "$PWD $WORD $CUDA_VISIBLE_DEVICES" > said.txt'
    cluster.run(
        ["sbatch", "--wait", "--gpus-per-node=2", "--output=job.log", f"--wrap={command}"],
        cwd=tmp_path,
        env={"WORD": "there", "PATH": os.environ["PATH"]},
    )
    assert (tmp_path / "said.txt").read_text() == f"{tmp_path} there 0,1\n"


def test_a_killed_node_takes_its_job_and_returns(cluster: SlurmCluster, tmp_path: Path) -> None:
    beat = "while sleep 0.2; do date > $HOSTNAME; done"
    submit = ["sbatch", "--parsable", "--no-requeue", "--output=/dev/null", f"--wrap={beat}"]
    lost = cluster.run([*submit, "--nodelist=wn3"], cwd=tmp_path).stdout.strip()
    other = cluster.run([*submit, "--nodelist=wn4"], cwd=tmp_path).stdout.strip()
    for name in ("wn3", "wn4"):
        cluster.wait_for(f"job on {name}", (tmp_path / name).exists)

    cluster.kill_node("wn3")
    (tmp_path / "wn3").unlink(missing_ok=True)
    cluster.wait_for("NODE_FAIL", lambda: cluster.jobs()[lost] == "NODE_FAIL", 120)
    assert cluster.states()["wn3"] == "down*"
    assert cluster.jobs()[other] == "RUNNING"
    (tmp_path / "wn4").unlink()
    cluster.wait_for("the other job goes on", (tmp_path / "wn4").exists)
    assert not (tmp_path / "wn3").exists(), "a process of the dead node still writes"

    cluster.restart_node("wn3")
    cluster.run(["scancel", other])
    cluster.wait_idle()
    assert cluster.run(["srun", "--nodelist=wn3", "hostname"]).stdout == "wn3\n"


def test_a_job_outlives_its_node_s_daemon(cluster: SlurmCluster, tmp_path: Path) -> None:
    command = "touch up; until [ -e go ]; do sleep 0.1; done; touch end"
    job = cluster.run(
        ["sbatch", "--parsable", "--nodelist=wn2", "--output=/dev/null", f"--wrap={command}"],
        cwd=tmp_path,
    ).stdout.strip()
    cluster.wait_for("job", (tmp_path / "up").exists)
    cluster.kill_slurmd("wn2")
    assert cluster.run(["pgrep", "--exact", "slurmd"], check=False).stdout.count("\n") == 3
    cluster.restart_node("wn2")
    (tmp_path / "go").touch()
    cluster.wait_for("COMPLETED", lambda: cluster.jobs()[job] == "COMPLETED")
    assert (tmp_path / "end").exists()


def inodes(pid: int) -> set[tuple[str, int]]:
    """Kind and number of every namespace of a process."""
    try:
        paths = list((Path("/proc") / str(pid) / "ns").iterdir())
        return {(path.name, path.stat().st_ino) for path in paths}
    except OSError:
        return set()


def members(of: set[tuple[str, int]]) -> list[int]:
    """Processes of the machine that are in one of these namespaces."""
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [pid for pid in pids if inodes(pid) & of]


def bridges_and_mounts() -> tuple[list[str], list[str]]:
    """What a cluster could leave in this process's own network and mounts."""
    links = [path.name for path in Path("/sys/class/net").iterdir()]
    targets = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    ours = re.compile("/run(/netns|/uts|$)|/dev/shm|/etc/|/var/l(og|ib)/munge")
    return (
        sorted(link for link in links if link.startswith(("bridge0", "port-"))),
        sorted(target for target in targets if ours.match(target)),
    )


@pytest.mark.usefixtures("slurm")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, None])
def test_nothing_is_left_behind(how: signal.Signals | None, tmp_path: Path) -> None:
    before = bridges_and_mounts()
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        # A shell lets what it starts in the background ignore this one, and so would the holder.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert holder.stdin is not None and holder.stdout is not None
    assert holder.stdout.readline() == "up\n"
    # All that descends from the holder, and the job's own processes, which do not.
    children = Path(f"/proc/{holder.pid}/task/{holder.pid}/children").read_text().split()
    private = set().union(*(inodes(int(pid)) for pid in children)) - inodes(os.getpid())
    jobs = members(private)
    assert len(jobs) > 5, "daemons and a job should run"
    private = set().union(*(inodes(pid) for pid in jobs)) - inodes(os.getpid())

    if how is None:
        holder.stdin.close()
    else:
        holder.send_signal(how)
    holder.wait(30)
    end = time.monotonic() + 30
    while left := members(private):
        assert time.monotonic() < end, f"still there: {left}"
        time.sleep(0.05)
    assert bridges_and_mounts() == before
