"""Emulated nodes work for a user without a home, a name of its own or any right: `nobody`."""

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.records import read_record
from tests.programs import ran
from tests.system.test_emulated import LINK, REASON, run_of

ROOT = Path(__file__).parents[2]
USER = "nobody"

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root"),
    pytest.mark.skipif(
        not all(map(shutil.which, ("unshare", "setpriv", "mount"))), reason="no util-linux"
    ),
]

# Where the interpreter lies in a folder of root alone, these processes see the way to it open.
SCRIPT = """
hidden=$1 python=$2 id=$3 kept=$4
shift 4
if [ -n "$hidden" ]; then
    mount --bind "$python" "$kept" && mount -t tmpfs -o mode=755 open "$hidden" &&
        mkdir -p "$python" && mount --bind "$kept" "$python" || exit 99
fi
exec setpriv --reuid="$id" --regid="$id" --clear-groups --no-new-privs "$@"
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """One that the user owns; pytest's own are closed to others."""
    made = Path(tempfile.mkdtemp(prefix="samestep-nobody-"))
    shutil.chown(made, USER)
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """What the command says as that user, with the folder as its working and temporary one."""
    python = Path(sys.base_prefix)
    hidden = next((str(p) for p in python.parents if not p.stat().st_mode & 0o001), "")
    kept = Path(tempfile.mkdtemp())
    words = [hidden, str(python), str(pwd.getpwnam(USER).pw_uid), str(kept)]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "TMPDIR": str(folder)}
    try:
        return ran(
            ["unshare", "--mount", "sh", "-c", SCRIPT, "sh", *words, sys.executable, *command],
            cwd=folder,
            env=environment | {"HOME": "/nonexistent"},
            timeout=500,
        )
    finally:
        kept.rmdir()


@pytest.mark.alone
@pytest.mark.skipif(REASON is not None, reason=f"no emulated nodes here: {REASON}")
def test_a_run_on_emulated_nodes(folder: Path, small_tokens: Path) -> None:
    """A user namespace of his own, and two nodes that share a core and are paced."""
    (folder / "spec.json").write_text(run_of("dps", 2).to_json())
    shutil.copytree(small_tokens, folder / "tokens")
    words = ("--spec=spec.json", "--tokens=tokens", "--out=out")
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        done = run(folder, "-m", "pipeline", "train", *words)
    finally:
        os.sched_setaffinity(0, cores)
    assert done.returncode == 0, done.stderr
    record = read_record(folder / "out")
    assert record.status == "ok", record.run["reason"]
    execution = record.run["execution"]
    assert execution["network"] == "emulated", done.stderr
    assert execution["emulation"]["shares"] == "paced"
    assert max(execution["emulation"]["measured_mbits"]) <= 1.2 * LINK.rate_mbits
