"""The shipped study on a real SLURM cluster, every training inside the image."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.system.test_slurm import CHECK, command, losses, records
from tests.workflow.project import ROOT, make_project

pytestmark = [pytest.mark.system, pytest.mark.slow]
ATTEMPTS = 3


def test_the_cluster_check_inside_the_image_equals_the_local_run(
    slurm_cluster, image, singularity, tmp_path
) -> None:
    """Six strategies on 1, 2 and 4 nodes; losses and gradient norms equal bit for bit."""
    there = make_project(tmp_path / "cluster")
    (there.folder / "images").mkdir()
    (there.folder / "images/samestep.sif").symlink_to(image.file)
    (there.folder / "images/samestep.json").write_text(json.dumps(image.facts))
    environment = there.environment()
    environment["PATH"] = f"{singularity}:{environment['PATH']}"
    done = slurm_cluster.run(
        command(there, study=CHECK), cwd=there.folder, env=environment, check=False, timeout=1500
    )
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-3000:] + slurm_cluster.logs(5)
    results = there.folder / "results/cluster-check"
    assert (results / "paper/paper.pdf").is_file()
    ran = records(results)
    assert len(ran) == 16
    here = local_losses(tmp_path / "local")
    for run, record in ran.items():
        assert (record["status"], record["reason"]) == ("ok", None), run
        assert record["execution"]["num_hosts"] == record["spec"]["world"]["nodes"], run
        assert record["provenance"]["image_digest"] == image.facts["image_digest"], run
        assert losses(results, run) == here[run], run


def local_losses(folder: Path) -> dict[str, Any]:
    """The same study on this machine, outside of the image, on nodes that are emulated.

    Their runs are forks of one process, so this takes a third of the time of the loopback. What
    other tests take the cores from is made again.
    """
    study = yaml.safe_load((ROOT / CHECK).read_text())
    link = {"name": "fast", "rate_mbits": 200}
    cluster = study["cluster"] | {"network": "emulated", "links": [link], "cores_per_node": 1}
    made = make_project(folder, **(study | {"study": "tiny", "cluster": cluster, "profile": None}))
    for _ in range(ATTEMPTS):
        made.run("--cores", "2", "metrics")
        found = records(made.results).items()
        disturbed = [run for run, record in found if record["status"] == "unsupported"]
        if not disturbed:
            break
        for run in disturbed:
            shutil.rmtree(made.results / "runs" / run)
    return {run: losses(made.results, run) for run in records(made.results)}
