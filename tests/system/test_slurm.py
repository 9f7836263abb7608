"""The study on a real SLURM cluster of four nodes, each with a network of its own.

One study serves all tests, each of which trains a repeat of its own.
"""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.system.slurm_cluster import SlurmCluster
from tests.system.stage import losses
from tests.workflow.project import ROOT, STUDY, Project, make_project

STEPS, EVERY = 1_200, 100
WORKLOAD: dict[str, Any] = dict(STUDY["workload"])
SITE: dict[str, Any] = {
    "partition": "main",
    "accounting": False,
    "before": ["export LD_LIBRARY_PATH=/of/a/module"],
    "container": {"runtime": "none"},
    "environment": {"NCCL_IB_HCA": "mlx5_0,mlx5_1", "GLOO_SOCKET_IFNAME": "eth0"},
}
"""Of this cluster, which has no accounting database."""

# It is asked often.
OPTIONS = (
    "--slurm-init-seconds-before-status-checks=1",
    "--seconds-between-status-checks=1",
    "--set-threads=tokens=2",
)


DDP = {"name": "dps", "label": "DDP", "strategy": "ddp", "precision": "fp32", "nodes": [2]}
CHECK = "workflow/config/cluster-check/study.yaml"
LOST, NOWHERE = (f"dps/n2/r{repeat}" for repeat in range(2))
REPEATS = 4
"""Of them the first runs are named above; an allocation trains the two that are left."""


def project(folder: Path, **changes: Any) -> Project:
    """The tiny study over a real network, one thread a rank, outside of a container."""
    shipped = yaml.safe_load((ROOT / CHECK).read_text())
    made = make_project(
        folder, **({"cells": [DDP], "cluster": shipped["cluster"], "profile": None} | changes)
    )
    write_site(made)
    return made


def write_site(made: Project, **changes: Any) -> None:
    """Write the site file of the project."""
    (made.folder / "workflow/site.yaml").write_text(yaml.safe_dump(SITE | changes))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The study, with a checkpoint after every `EVERY` steps."""
    workload = {**WORKLOAD, "steps": STEPS, "checkpoint_every": EVERY}
    folder = tmp_path_factory.mktemp("study") / "checkout"
    return project(folder, workload=workload, timeout_seconds=400, repeats=REPEATS)


@pytest.fixture
def cluster(slurm_cluster: SlurmCluster) -> Iterator[SlurmCluster]:
    """The cluster, whose nodes are up and idle, also after a test that failed."""
    slurm_cluster.wait_idle()
    yield slurm_cluster
    slurm_cluster.run(["scancel", "--user=root"])
    for name, state in slurm_cluster.states().items():
        if state.startswith("down"):
            slurm_cluster.restart_node(name)


def command(made: Project, *options: str, study: str = "tiny.yaml") -> list[str]:
    """The command of docs/clusters.md."""
    snakemake = str(Path(sys.executable).with_name("snakemake"))
    profile = ("--profile", "workflow/profiles/slurm", "--configfile", study)
    return [snakemake, *options, *OPTIONS, *profile]


def record_of(run: str) -> str:
    """The file to ask Snakemake for."""
    return f"results/tiny/runs/{run}/run.json"


def records(results: Path) -> dict[str, Any]:
    found = sorted(results.glob("runs/*/*/*/run.json"))
    loaded = [json.loads(path.read_text()) for path in found]
    return {record["run_id"].partition("/")[2]: record for record in loaded}


def start_to_a_checkpoint(cluster: SlurmCluster, made: Project, run: str) -> subprocess.Popen[str]:
    """The run, started on the cluster, as soon as it has a checkpoint."""
    study = cluster.popen(
        command(made, record_of(run)),
        cwd=made.folder,
        env=made.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    checkpoints = made.results / "runs" / run / "checkpoints"
    cluster.wait_for(
        "a checkpoint", lambda: next(checkpoints.glob("step-*"), None) is not None, 120
    )
    return study


def ends_well(study: subprocess.Popen[str], made: Project, run: str) -> str:
    """Words of Snakemake, whose run has gone on from a checkpoint."""
    said, _ = study.communicate(timeout=300)
    assert study.returncode == 0, said[-3000:]
    resumed_from(made, run)
    return str(said)


def resumed_from(made: Project, run: str) -> int:
    """The step of its checkpoint; the record, of a later launch, is whole, and nothing is left."""
    folder = made.results / "runs" / run
    record = json.loads((folder / "run.json").read_text())
    assert record["status"] == "ok"
    assert len(losses(made.results / "runs" / run)) == record["execution"]["world_size"] * STEPS
    left = sorted(path.name for path in folder.iterdir())
    assert left == ["log.txt", "run.json", "spec.json", "steps.jsonl"]
    assert record["execution"]["resumed_from_step"] >= EVERY
    return int(record["execution"]["resumed_from_step"])


def running(cluster: SlurmCluster) -> str:
    """The number of the one job."""
    (job,) = [job for job, state in cluster.jobs().items() if state == "RUNNING"]
    return job


def preempt(cluster: SlurmCluster) -> None:
    """Jobs of a partition with more priority take the nodes for some seconds."""
    cluster.run(["srun", "--partition=urgent", "--nodes=4", "--exclusive", "sleep", "2"])


def test_a_run_that_lost_a_node_goes_on_from_its_checkpoint(cluster, made) -> None:
    """The daemon of a node dies, its ranks live on: the harder case, as two launches overlap.

    The record is of the second attempt, whole, and nothing of the first disturbs it. SLURM
    would find the silent node after half a minute; here `scontrol` marks it as down.
    """
    study = start_to_a_checkpoint(cluster, made, LOST)
    nodes = cluster.run(["squeue", "-h", "-j", running(cluster), "-o", "%N"]).stdout.strip()
    node = cluster.run(["scontrol", "show", "hostnames", nodes]).stdout.split()[1]
    cluster.kill_slurmd(node)
    cluster.run(["scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=silent"])
    assert "NODE_FAIL" in ends_well(study, made, LOST)


def test_an_unknown_partition_is_named_by_the_doctor_and_by_the_workflow(cluster, made) -> None:
    doctor = [sys.executable, "-m", "pipeline", "doctor", "--site"]
    settings: dict[str, Any] = {"cwd": made.folder, "env": made.environment(), "check": False}
    said = cluster.run(doctor, **settings).stdout
    for probe in ("slurm", "before", "jobs", "accounting", "folders", "environment"):
        assert re.search(f"^ok +{probe} ", said, re.MULTILINE), said
    assert re.search("^missing +gpus .*SLURM refuses .*--gpus-per-node=1: ", said, re.MULTILINE)
    write_site(made, partition="nope")
    try:
        said = cluster.run(doctor, **settings).stdout
        wrong = command(made, record_of(NOWHERE), "--retries=0")
        done = cluster.run(wrong, **settings)
    finally:
        write_site(made)
    assert re.search("^missing +jobs .*invalid partition specified: nope", said, re.MULTILINE), said
    assert done.returncode != 0
    assert "invalid partition specified: nope" in done.stdout + done.stderr
    assert NOWHERE not in records(made.results)


def test_outside_of_an_allocation_nothing_is_trained_in_its_place(made) -> None:
    """Here, without a scheduler, a run over two machines is recorded as what it is."""
    made.run("--cores", "2", record_of(NOWHERE))
    record = records(made.results)[NOWHERE]
    assert record["status"] == "unsupported" and "needs 2 machines" in record["reason"]


def test_runs_of_an_ended_allocation_go_on_in_the_next(cluster, made) -> None:
    """Runs share an allocation: one is preempted, one gets the signal and resumes.

    `scancel --batch` sends the batch script what `--signal=B:USR1@120` does before its end.
    """
    runs, before = made.results / "runs/dps/n2", {*records(made.results)}
    allocate = [sys.executable, "-m", "pipeline", "allocate", "--study", "tiny.yaml"]
    printed = cluster.run(allocate, cwd=made.folder, env=made.environment()).stdout.splitlines()
    [sbatch, *words] = next(shlex.split(line) for line in printed if " runs_on_2 " in line)
    send = [sbatch, "--parsable", "--output=job.txt", *words]
    number = cluster.run(send, cwd=made.folder, env=made.environment()).stdout.strip()

    def wait_for_a_checkpoint() -> str:
        found = list[Path]()

        def there() -> bool:
            kept = runs.glob("*/checkpoints/step-*")
            found[:] = [path for path in kept if not (path.parents[1] / "run.json").exists()]
            return bool(found)

        cluster.wait_for("a checkpoint", there, 240)
        return found[0].parts[-3]

    first = wait_for_a_checkpoint()
    preempt(cluster)
    cluster.wait_for("the first run", (runs / first / "run.json").exists, 240)
    wait_for_a_checkpoint()
    cluster.run(["scancel", "--batch", "--signal=USR1", number])
    cluster.wait_for("the end", lambda: cluster.jobs()[number] in ("COMPLETED", "FAILED"), 300)
    said = (made.folder / "job.txt").read_text()
    assert cluster.jobs()[number] == "COMPLETED", said[-3000:]
    assert "DUE TO PREEMPTION" in said and "the job was asked to end" in said
    ended = records(made.results)
    ran = [run for run in ended if run.startswith("dps/n2/") and run != NOWHERE]
    steps = {run: ended[run]["execution"]["resumed_from_step"] for run in {*ran} - before}
    assert len(steps) == 2 and all(resumed_from(made, run) for run in steps)
    assert any(step % EVERY for step in steps.values()), "of the signal, not of every 100 steps"
    settings = ended[f"dps/n2/{first}"]["execution"]["settings"]
    assert settings.items() >= SITE["environment"].items()
    assert settings["LD_LIBRARY_PATH"] == "/of/a/module"
    # All repeats have one seed.
    each = [losses(made.results / "runs" / run) for run in ran]
    assert all(one == each[0] for one in each)
