"""The one study that is really trained here, for all files and processes of a session of tests."""

import fcntl
import os
import signal
import subprocess
import time
from pathlib import Path
from shutil import copytree

import pytest

from tests.workflow.project import Project, make_project

SAID = "said.txt"
"""What Snakemake said when the killed workflow was started again; it is written last."""


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The study `tiny`, killed while a run was training and then run to its end; not to be changed.

    Made by the process that asks first; the others wait for it.
    """
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    with (folder / "trained.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        project = Project(folder / "trained")
        if not (project.folder / SAID).is_file():
            assert not project.folder.exists(), "another process failed to train it; see its errors"
            kill_while_training(make_project(project.folder))
            done = project.run("--cores", "2", "--verbose")
            (project.folder / SAID).write_text(done.stdout + done.stderr)
    return project


def kill_while_training(project: Project) -> None:
    """Start the workflow and kill it without warning once a run has written a step."""
    process = subprocess.Popen(
        project.command("--cores", "2"), cwd=project.folder, env=project.environment(),
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    deadline = time.monotonic() + 240
    while not any(p.stat().st_size for p in project.results.glob("runs/*/*/*/ranks/rank0.steps")):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.fixture(scope="session")
def said(trained: Project) -> str:
    """What Snakemake said when the killed workflow was started again."""
    return (trained.folder / SAID).read_text()


@pytest.fixture(scope="module")
def finished(trained: Project, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A copy of the finished study that the tests of a file may change."""
    folder = tmp_path_factory.mktemp("finished") / "checkout"
    return Project(Path(copytree(trained.folder, folder, symlinks=True)))
