"""The shipped study, cut short, on a real SLURM cluster, every training inside the image."""

from __future__ import annotations

import json
import shutil
import sys
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
    there = contained(tmp_path / "cluster", image, "apptainer")
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


SRUN = f"""#!{sys.executable}
import json, os, sys
options, container, words = [], {{}}, sys.argv[1:]
while words[0].startswith("-"):
    name, _, value = words[0].partition("=")
    if "-container-" in name:
        container[name] = value
        with open(os.environ["SRUN_LOG"], "a") as log:
            print(words[0], file=log)
    else:
        options.append(words[0])
    words.pop(0)
if container:
    place, mounts = container["--container-workdir"], container["--container-mounts"]
    inside = ["exec", "--home", place, "--pwd", place, "--bind", mounts]
    words = ["singularity", *inside, container["--container-image"], *words]
os.execv({shutil.which("srun")!r}, ["srun", *options, *words])
"""
"""`srun` as pyxis extends it: writes those options down, and the stand-in enters the image."""


def test_pyxis_enters_the_image_on_one_node_and_on_several(
    slurm_cluster, image, singularity, tmp_path
) -> None:
    there = contained(tmp_path / "cluster", image, "pyxis")
    script = tmp_path / "bin/srun"
    script.parent.mkdir()
    script.write_text(SRUN)
    script.chmod(0o755)
    environment = there.environment() | {"SRUN_LOG": str(tmp_path / "log")}
    environment["PATH"] = f"{script.parent}:{singularity}:{environment['PATH']}"
    targets = [f"results/cluster-check/runs/{run}/run.json" for run in ("dps/n2/r0", "dps/n1/r0")]
    done = slurm_cluster.run(
        command(there, *targets, study=CHECK), cwd=there.folder, env=environment, check=False,
        timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-3000:] + slurm_cluster.logs(5)
    ran = records(there.folder / "results/cluster-check")
    for run, record in ran.items():
        assert (record["status"], record["reason"]) == ("ok", None), run
        assert record["provenance"]["image_digest"] == image.facts["image_digest"], run
    assert {*ran} == {"dps/n1/r0", "dps/n2/r0"}
    log = (tmp_path / "log").read_text().splitlines()
    assert log.count(f"--container-image={image.file}") == 2


def contained(folder: Path, image: Image, runtime: str) -> Project:
    """A project on this cluster whose image a runtime enters."""
    there = make_project(folder)
    (folder / "images").mkdir()
    (folder / "images/samestep.sif").symlink_to(image.file)
    (folder / "images/samestep.json").write_text(json.dumps(image.facts))
    write_site(there, container={"runtime": runtime}, environment={}, before=[])
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
