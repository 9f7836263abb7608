"""The study on a real SLURM cluster of four nodes, each with a network of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from tests.system.slurm_cluster import SlurmCluster
from tests.workflow.project import ROOT, STUDY, Project, make_project

pytestmark = [pytest.mark.system, pytest.mark.slow]

WORKLOAD: dict[str, Any] = dict(STUDY["workload"])  # type: ignore[call-overload]
# A cluster without an accounting database, asked often.
OPTIONS = (
    "--slurm-status-command=squeue",
    "--slurm-init-seconds-before-status-checks=1",
    "--seconds-between-status-checks=1",
    "--set-threads=tokens=2",
)


DDP = {"name": "dps", "label": "DDP", "strategy": "ddp", "precision": "fp32", "nodes": [2]}
CHECK = "workflow/config/cluster-check/study.yaml"


def project(folder: Path, **changes: Any) -> Project:
    """The tiny study over a real network, one thread a rank, outside of a container."""
    shipped = yaml.safe_load((ROOT / CHECK).read_text())
    made = make_project(
        folder, **({"cells": [DDP], "cluster": shipped["cluster"], "profile": None} | changes)
    )
    for name in ("slurm", "allocation"):
        profile = folder / f"workflow/profiles/{name}/config.yaml"
        settings = yaml.safe_load(profile.read_text())
        for of_the_container in ("sdm", "apptainer-args"):
            del settings[of_the_container]
        profile.write_text(yaml.safe_dump(settings))
    return made


def command(made: Project, *options: str, study: str = "tiny.yaml") -> list[str]:
    """The README's command, for a cluster without an accounting database."""
    snakemake = str(Path(sys.executable).with_name("snakemake"))
    profile = ("--profile", "workflow/profiles/slurm", "--configfile", study)
    return [snakemake, *options, *OPTIONS, *profile]


def records(results: Path) -> dict[str, Any]:
    found = sorted(results.glob("runs/*/*/*/run.json"))
    loaded = [json.loads(path.read_text()) for path in found]
    return {record["run_id"].partition("/")[2]: record for record in loaded}


def losses(results: Path, run: str) -> list[tuple[int, int, float, float]]:
    lines = (results / "runs" / run / "steps.jsonl").read_text().splitlines()
    steps = [json.loads(line) for line in lines]
    return [(s["step"], s["rank"], s["loss"], s["grad_norm"]) for s in steps]


def test_a_run_that_lost_a_node_goes_on_from_its_checkpoint(slurm_cluster, tmp_path) -> None:
    """The daemon of a node dies, its ranks live on: the harder case, as two launches overlap.

    The record is of the second attempt, whole, and nothing of the first disturbs it. That a node
    without power ends its job in the same way is shown by test_slurm_cluster.
    """
    # It takes SLURM half a minute to give a node up; the run must be longer.
    made = with_checkpoints(tmp_path / "cluster", steps=6_000, every=200)
    study = start_to_a_checkpoint(slurm_cluster, made)
    (job,) = [job for job, state in slurm_cluster.jobs().items() if state == "RUNNING"]
    nodes = slurm_cluster.run(["squeue", "-h", "-j", job, "-o", "%N"]).stdout.strip()
    node = slurm_cluster.run(["scontrol", "show", "hostnames", nodes]).stdout.split()[1]
    slurm_cluster.kill_slurmd(node)
    said, _ = study.communicate(timeout=420)
    slurm_cluster.restart_node(node)
    slurm_cluster.wait_idle()
    assert study.returncode == 0, said[-3000:]
    assert "NODE_FAIL" in said
    check_gone_on(made, steps=6_000)


def test_a_preempted_run_goes_on_from_its_checkpoint(slurm_cluster, tmp_path) -> None:
    """Jobs of a partition with more priority take the nodes for some seconds."""
    made = with_checkpoints(tmp_path / "cluster", steps=1_200, every=100)
    study = start_to_a_checkpoint(slurm_cluster, made)
    slurm_cluster.run(["srun", "--partition=urgent", "--nodes=4", "--exclusive", "sleep", "2"])
    said, _ = study.communicate(timeout=300)
    assert study.returncode == 0, said[-3000:]
    assert "ended with PREEMPTED: it is sent again" in said
    check_gone_on(made, steps=1_200)


def test_a_killed_run_on_one_node_goes_on_from_its_checkpoint(slurm_cluster, tmp_path) -> None:
    made = with_checkpoints(tmp_path / "cluster", steps=1_200, every=100, nodes=1)
    study = start_to_a_checkpoint(slurm_cluster, made, "dps/n1/r0")
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if "pipeline.training.worker" in words and f"--out={made.results}" in " ".join(words):
            process.kill()
    said, _ = study.communicate(timeout=300)
    assert study.returncode == 0, said[-3000:]
    assert "Trying to restart job" in said
    check_gone_on(made, steps=1_200, run="dps/n1/r0")


def test_a_run_whose_job_gets_the_signal_goes_on_from_where_it_was(slurm_cluster, tmp_path) -> None:
    """`scancel --batch` sends the batch script what `--signal=B:USR1@120` does before its end."""
    made = with_checkpoints(tmp_path / "cluster", steps=1_200, every=100)
    study = start_to_a_checkpoint(slurm_cluster, made)
    (job,) = [job for job, state in slurm_cluster.jobs().items() if state == "RUNNING"]
    slurm_cluster.run(["scancel", "--batch", "--signal=USR1", job])
    said, _ = study.communicate(timeout=300)
    assert study.returncode == 0, said[-3000:]
    assert "Trying to restart job" in said
    check_gone_on(made, steps=1_200)
    record = json.loads((made.results / "runs/dps/n2/r0/run.json").read_text())
    assert record["execution"]["resumed_from_step"] % 100, "of the signal, not of every 100 steps"


@pytest.mark.parametrize("how", ["preempted", "signalled"])
def test_runs_of_an_ended_allocation_go_on_in_the_next(slurm_cluster, tmp_path, how) -> None:
    """Two runs share an allocation; the first loses it, and takes the same steps as the second."""
    made = with_checkpoints(tmp_path / "cluster", steps=1_000, every=100, repeats=2)
    job = ("workflow/profiles/allocation/job.sh", "runs_on_2", "--configfile", "tiny.yaml")
    sent = slurm_cluster.run(
        ["sbatch", "--parsable", "--nodes=2", "--output=job.txt", *job],
        cwd=made.folder,
        env=made.environment(),
    )
    number = sent.stdout.strip()
    runs = made.results / "runs/dps/n2"
    slurm_cluster.wait_for(
        "a checkpoint", lambda: next(runs.glob("*/checkpoints/step-*"), None) is not None, 120
    )
    if how == "preempted":
        slurm_cluster.run(["srun", "--partition=urgent", "--nodes=4", "--exclusive", "sleep", "2"])
    else:
        slurm_cluster.run(["scancel", "--batch", "--signal=USR1", number])
    slurm_cluster.wait_for(
        "the end", lambda: slurm_cluster.jobs()[number] in ("COMPLETED", "FAILED"), 300
    )
    said = (made.folder / "job.txt").read_text()
    assert slurm_cluster.jobs()[number] == "COMPLETED", said[-3000:]
    assert ("DUE TO PREEMPTION" if how == "preempted" else "the job was asked to end") in said
    first, second = records(made.results).values()
    assert first["status"] == second["status"] == "ok"
    resumed = [record["execution"]["resumed_from_step"] for record in (first, second)]
    assert sorted(step > 0 for step in resumed) == [False, True], resumed
    assert losses(made.results, "dps/n2/r0") == losses(made.results, "dps/n2/r1")


def with_checkpoints(
    folder: Path, steps: int, every: int, nodes: int = 2, repeats: int = 1
) -> Project:
    """Runs of `steps` steps on `nodes` nodes, with a checkpoint after every `every` of them."""
    workload = {**WORKLOAD, "steps": steps, "checkpoint_every": every}
    cells = [{**DDP, "nodes": [nodes]}]
    return project(folder, cells=cells, workload=workload, timeout_seconds=400, repeats=repeats)


def start_to_a_checkpoint(
    cluster: SlurmCluster, made: Project, run: str = "dps/n2/r0"
) -> subprocess.Popen[str]:
    """The study, started on the cluster, as soon as its run has a checkpoint."""
    study = cluster.popen(
        command(made, "metrics"),
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


def check_gone_on(made: Project, steps: int, run: str = "dps/n2/r0") -> None:
    """The record is of a later launch and whole, and nothing else is left."""
    folder = made.results / "runs" / run
    record = json.loads((folder / "run.json").read_text())
    assert record["status"] == "ok"
    assert record["execution"]["resumed_from_step"] >= 100
    assert len(losses(made.results, run)) == record["execution"]["world_size"] * steps
    left = sorted(path.name for path in folder.iterdir())
    assert left == ["log.txt", "run.json", "spec.json", "steps.jsonl"]


def test_a_run_out_of_time_is_a_record(slurm_cluster, tmp_path) -> None:
    workload = {**WORKLOAD, "steps": 10**6}
    made = project(tmp_path / "cluster", workload=workload, timeout_seconds=15)
    done = slurm_cluster.run(command(made, "metrics"), cwd=made.folder, env=made.environment())
    assert done.returncode == 0
    (record,) = records(made.results).values()
    assert record["status"] == "timeout" and "timeout_seconds = 15" in record["reason"]


def test_an_unknown_partition_is_named(slurm_cluster, tmp_path) -> None:
    made = project(tmp_path / "cluster")
    wrong = ("metrics", "--default-resources", "slurm_partition=nope", "--retries=0")
    done = slurm_cluster.run(
        command(made, *wrong), cwd=made.folder, env=made.environment(), check=False
    )
    assert done.returncode != 0
    assert "invalid partition specified: nope" in done.stdout + done.stderr
    assert not records(made.results)


def test_outside_of_an_allocation_nothing_is_trained_in_its_place(tmp_path) -> None:
    """Here, without a scheduler, a run over two machines is recorded as what it is."""
    made = project(tmp_path / "local")
    made.run("--cores", "2", "metrics")
    (record,) = records(made.results).values()
    assert record["status"] == "unsupported" and "needs 2 machines" in record["reason"]
