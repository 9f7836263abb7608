"""The shipped study, cut short, on a real SLURM cluster, every training inside the image."""

from pathlib import Path
from typing import Any

import yaml

from tests.system.image import Image
from tests.system.stage import losses
from tests.system.test_slurm import CHECK, command, records, write_site
from tests.workflow.project import ROOT, Project, make_project

NODES = {"single": 1, "horovod": 4}
"""The cells that are left, each on so many: a job starts for longer than it trains, and every
strategy takes its steps while the image is built."""


def test_the_cluster_check_inside_the_image_equals_the_local_run(
    slurm_cluster, image, singularity, tmp_path
) -> None:
    """One cell on 1 node, one on 4; losses and norms equal bit for bit."""
    there = contained(tmp_path / "cluster", image)
    (there.folder / CHECK).write_text(yaml.safe_dump(cut_study()))
    environment = there.environment()
    environment["PATH"] = f"{singularity}:{environment['PATH']}"
    done = slurm_cluster.run(
        command(there, study=CHECK), cwd=there.folder, env=environment, check=False, timeout=1500
    )
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-3000:] + slurm_cluster.logs(5)
    results = there.folder / "results/cluster-check"
    assert (results / "paper/paper.pdf").is_file()
    ran = records(results)
    assert len(ran) == len(NODES)
    for run, record in ran.items():
        assert (record["status"], record["reason"]) == ("ok", None), run
        assert record["execution"]["num_hosts"] == record["spec"]["world"]["nodes"], run
        assert record["provenance"]["image_digest"] == image.facts["image_digest"], run
    here = local_losses(tmp_path / "local")
    assert here.keys() == ran.keys()
    for run, local in here.items():
        assert losses(results / "runs" / run) == local, run


def contained(folder: Path, image: Image) -> Project:
    """A project on this cluster whose launchers enter the image."""
    there = make_project(folder)
    image.put_into(folder)
    write_site(there, container={"runtime": "apptainer"}, environment={}, before=[])
    return there


def cut_study() -> dict[str, Any]:
    """The study with the cells of `NODES` alone."""
    study: dict[str, Any] = yaml.safe_load((ROOT / CHECK).read_text())
    cells = [cell for cell in study["cells"] if cell["name"] in NODES]
    return study | {"cells": [cell | {"nodes": [NODES[cell["name"]]]} for cell in cells]}


def local_losses(folder: Path) -> dict[str, Any]:
    """Those of the same runs over the loopback and outside of the image.

    Not on emulated nodes, whose runs are refused while other tests have the cores.
    """
    study = cut_study()
    study["cluster"]["network"] = "loopback"
    study["corpus"]["paths"] = ["LICENSE"]  # from the checkout, where this study lies
    made = make_project(folder, **(study | {"study": "tiny", "profile": None}))
    made.run("--cores", "2", "all", "--until", "train")
    return {run: losses(made.results / "runs" / run) for run in records(made.results)}
