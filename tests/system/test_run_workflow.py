"""envs/run_workflow.sh around a real Snakemake that another start finds stopped or at work."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "envs" / "run_workflow.sh"
# The job leaves a line a start, so that a test can tell one from two, and ends when `go` is there.
SNAKEFILE = """
rule slow:
    output:
        "slow.txt",
    shell:
        "echo started >> starts.log; until [ -e go ]; do sleep 0.1; done; echo whole > {output}"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "Snakefile").write_text(SNAKEFILE)
    (tmp_path / ".venv").symlink_to(sys.prefix)
    return tmp_path


def start(folder: Path) -> subprocess.Popen[str]:
    # no coverage, jobserver or Snakemake variable of the outer run
    environment = {key: os.environ[key] for key in ("PATH", "HOME") if key in os.environ}
    return subprocess.Popen(
        ["/bin/sh", str(SCRIPT), "--cores", "1"], cwd=folder, env=environment,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip


def starts(folder: Path) -> int:
    log = folder / "starts.log"
    return len(log.read_text().splitlines()) if log.exists() else 0


def wait_for_start(folder: Path, process: subprocess.Popen[bytes] | subprocess.Popen[str]) -> None:
    # The line, not the file: a job killed between the two has left an empty log.
    while not starts(folder):
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.05)


def test_a_snakemake_started_by_hand_keeps_its_lock(folder: Path) -> None:
    # What only looks on is not waited for: `make paper` starts the script by `follow`. By its name
    # this is such a process, a Python in this folder.
    idle = [sys.executable, "-c", "import time; time.sleep(200)", "pipeline", "follow"]
    looks_on = subprocess.Popen(idle, cwd=folder)
    by_hand = subprocess.Popen(
        [str(Path(sys.prefix, "bin", "snakemake")), "--cores", "1"], cwd=folder,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        wait_for_start(folder, by_hand)
        waiting = start(folder)
        assert waiting.stdout is not None
        line = waiting.stdout.readline()
        assert "still at work here: process" in line
        assert f"process {by_hand.pid} (" in line and "snakemake --cores 1" in line
        assert list((folder / ".snakemake" / "locks").iterdir())
    finally:
        os.killpg(by_hand.pid, signal.SIGKILL)
        by_hand.wait()
    (folder / "go").touch()
    try:
        assert waiting.communicate(timeout=120)[0]
        assert looks_on.poll() is None and waiting.returncode == 0
    finally:
        looks_on.kill()
        looks_on.wait()
    assert (folder / "slow.txt").read_text() == "whole\n"


def test_a_stopped_snakemake_is_named_with_the_ways_out(folder: Path) -> None:
    first = start(folder)
    wait_for_start(folder, first)
    os.kill(first.pid, signal.SIGSTOP)
    second = start(folder)
    assert second.stdout is not None
    assert second.stdout.readline().startswith("note: another run works in this folder")
    assert second.stdout.readline() == (
        f"note: process {first.pid}, which works here, is stopped; `kill -CONT {first.pid}` "
        f"continues it, `kill -KILL {first.pid}` ends it and what it finished stays\n"
    )
    assert second.poll() is None
    (folder / "go").touch()
    os.kill(first.pid, signal.SIGCONT)
    outputs = [process.communicate(timeout=120)[0] for process in (first, second)]
    assert second.returncode == 0, outputs
    assert (folder / "slow.txt").read_text() == "whole\n"
    assert starts(folder) == 1
