"""The shipped study, cut short, on a real SLURM cluster, every training inside the image."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.system.image import Image
from tests.system.test_slurm import CHECK, command, losses, records, write_site
from tests.workflow.project import ROOT, Project, make_project

pytestmark = [pytest.mark.system, pytest.mark.slow]


def test_the_cluster_check_inside_the_image_equals_the_local_run(
    slurm_cluster, image, singularity, tmp_path
) -> None:
    """Five cells on 4 nodes, one on 1; losses and norms equal bit for bit."""
    there = contained(tmp_path / "cluster", image)
    cut(there.folder / CHECK)
    environment = there.environment()
    environment["PATH"] = f"{singularity}:{environment['PATH']}"
    done = slurm_cluster.run(
        command(there, study=CHECK), cwd=there.folder, env=environment, check=False, timeout=1500
    )
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-3000:] + slurm_cluster.logs(5)
    results = there.folder / "results/cluster-check"
    assert (results / "paper/paper.pdf").is_file()
    ran = records(results)
    assert len(ran) == 6
    for run, record in ran.items():
        assert (record["status"], record["reason"]) == ("ok", None), run
        assert record["execution"]["num_hosts"] == record["spec"]["world"]["nodes"], run
        assert record["provenance"]["image_digest"] == image.facts["image_digest"], run
    here = local_losses(tmp_path / "local")
    assert len(here) == 6
    for run, local in here.items():
        assert losses(results, run) == local, run


def contained(folder: Path, image: Image) -> Project:
    """A project on this cluster whose launchers enter the image."""
    there = make_project(folder)
    image.put_into(folder)
    write_site(there, container={"runtime": "apptainer"}, environment={}, before=[])
    return there


def cut(file: Path) -> None:
    """Leave the most nodes alone: a job's start takes longer than its steps."""
    study = yaml.safe_load(file.read_text())
    most = max(study["cluster"]["nodes"])
    for cell in study["cells"]:
        cell.setdefault("nodes", [most])
    file.write_text(yaml.safe_dump(study))


def local_losses(folder: Path) -> dict[str, Any]:
    """Each strategy on the most nodes that it has, over the loopback and outside of the image.

    Not on emulated nodes, whose runs are refused while other tests have the cores.
    """
    study = yaml.safe_load((ROOT / CHECK).read_text())
    most = max(study["cluster"]["nodes"])
    cluster = study["cluster"] | {"network": "loopback", "nodes": [most]}
    corpus = study["corpus"] | {"paths": ["LICENSE"]}  # from the checkout, where this study lies
    changes = {"study": "tiny", "corpus": corpus, "cluster": cluster, "profile": None}
    made = make_project(folder, **(study | changes))
    made.run("--cores", "2", "all", "--until", "train")
    return {run: losses(made.results, run) for run in records(made.results)}
