"""`snakemake --cores all --use-singularity`: the default study, cut short, in the real image."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.programs import ran, stand_in
from tests.system.image import STANDIN
from tests.workflow.project import ROOT, Project, make_project

pytestmark = pytest.mark.alone

USER = 1000
AS_USER = f"setpriv --reuid={USER} --regid={USER} --clear-groups"
CELLS = ("single", "horovod")


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A temporary folder that every user may enter; pytest's own are closed to others."""
    with tempfile.TemporaryDirectory(prefix="samestep-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture(scope="module")
def user_runtime(singularity: Path) -> Iterator[Path]:
    """A folder with a `singularity` that is called by somebody who is not root."""
    if os.geteuid() != 0:
        yield singularity
        return
    with tempfile.TemporaryDirectory(prefix="samestep-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        cache = folder / "cache"
        cache.mkdir()
        os.chown(cache, USER, USER)
        real = shutil.which("apptainer") or shutil.which("singularity")
        program = real or f"/usr/bin/python3 {STANDIN}"
        words = f'export SINGULARITY_CACHEDIR={cache}\nexec {AS_USER} {program} "$@"'
        stand_in(folder / "singularity", words)
        yield folder


def snakemake(made: Project, runtime: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """The command that the README gives, on the study of the project."""
    environment = made.environment()
    environment["PATH"] = f"{runtime}:{environment['PATH']}"
    # Snakemake mounts its cache, which must not lie in the home of somebody else.
    environment["XDG_CACHE_HOME"] = str(made.folder / ".cache")
    command = [str(Path(sys.executable).with_name("snakemake")), *options]
    command += ["--cores", "all", "--use-singularity", "--configfile", made.study.name]
    # Snakemake makes folders as root here, for jobs that run as the user.
    return ran(command, cwd=made.folder, env=environment, timeout=580, umask=0)


def test_the_default_study_inside_the_image(image, user_runtime, open_folder) -> None:
    """Text to metrics, one cell on a node, one on two nodes; the records say where it was.

    All strategies take their steps while the image is built.
    """
    smoke = yaml.safe_load((ROOT / "workflow/config/smoke/study.yaml").read_text())
    cut = smoke["workload"] | {"steps": 6, "untimed_steps": 2}
    changes = smoke | {
        "study": "tiny",
        "workload": cut,
        "cluster": smoke["cluster"] | {"nodes": [2]},
        "repeats": 1,
        "cells": [cell for cell in smoke["cells"] if cell["name"] in CELLS],
    }
    changes["profile"] = None
    del changes["cluster"]["real_time"]
    made = make_project(open_folder, **changes)
    image.put_into(open_folder)
    subprocess.run(["chown", "--recursive", f"{USER}:{USER}", str(open_folder)], check=True)
    done = snakemake(made, user_runtime, "metrics")
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-4000:]
    found = [json.loads(p.read_text()) for p in made.results.glob("runs/*/*/*/run.json")]
    assert len(found) == len(CELLS)
    for record in found:
        assert (record["status"], record["reason"]) == ("ok", None), record["run_id"]
        assert record["provenance"]["image_digest"] == image.facts["image_digest"]
        # Where a runtime lets no namespaces be made inside, the record says so.
        emulated = record["execution"]["network"] == "emulated"
        assert emulated != ("network_reason" in record["execution"])
        assert record["versions"]["torch"] == image.facts["versions"]["torch"]
    assert (made.results / "metrics/metrics.parquet").is_file()
