"""The optional extra, installed from its lock into a folder of its own, against `single`."""

import hashlib
import os
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import pytest

from tests.programs import ran
from tests.workflow.project import ROOT

INSTALL = "--no-build-isolation --no-deps --require-hashes -r envs/deepspeed.lock"
"""As docs/strategies.md has it, where it goes into .venv."""

CHOSEN = (
    "takes_the_steps_of_a_single_device",
    "in_micro_batches",
    "a_checkpoint",
    "cover",
    "resuming",
)


@pytest.fixture(scope="module")
def installed() -> Path:
    """Its interpreter, made once for this lock and environment."""
    assert INSTALL in (ROOT / "docs/strategies.md").read_text()
    packages = sysconfig.get_path("purelib")
    key = hashlib.sha256((ROOT / "envs/deepspeed.lock").read_bytes() + packages.encode())
    final = ROOT / ".cache" / f"deepspeed-{key.hexdigest()[:16]}"
    if not final.is_dir():
        final.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=final.parent) as folder:
            work = Path(folder) / "env"
            install(work, [packages, str(final)])
            work.rename(final)
    return final / "venv/bin/python"


def install(folder: Path, places: list[str]) -> None:
    """DeepSpeed, and a `venv` that has the packages of all places."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder)]
    environment = os.environ | {"DS_ACCELERATOR": "cpu", "DS_BUILD_OPS": "0"}
    done = ran([*command, *INSTALL.split()], cwd=ROOT, env=environment)
    missing = [line for line in done.stderr.splitlines() if "No matching distribution" in line]
    if missing or "NewConnectionError" in done.stderr:
        pytest.skip(f"pip finds no DeepSpeed: {' '.join(missing) or 'no network'}")
    assert done.returncode == 0, done.stderr[-3000:]
    # Ranks take over no PYTHONPATH: an interpreter of its own finds both environments' packages.
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    [packages] = (folder / "venv").glob("lib/python*/site-packages")
    (packages / "both.pth").write_text("\n".join(places) + "\n")


def test_every_stage_takes_the_same_steps_on_two_ranks(installed: Path) -> None:
    chosen = ("tests/parity", "-k", f"({' or '.join(CHOSEN)}) and deepspeed and -2 and not -4")
    done = ran(
        [installed, "-m", "pytest", "-q", "-p", "no:cacheprovider", *chosen], cwd=ROOT, timeout=500
    )
    # Of each of the three stages plain steps, micro-batches with what it sends, its checkpoint
    # (two tests), a resume, and decay beside a padded vocabulary; bf16, and decay alone.
    assert done.returncode == 0 and "20 passed" in done.stdout, done.stdout[-3000:]
