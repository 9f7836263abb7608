"""A full disk ends a run with one clear line and without half a record."""

import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.parity.cases import Case
from tests.programs import ran
from tests.system.stage import words_of

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root"),
    pytest.mark.skipif(shutil.which("unshare") is None, reason="no unshare (util-linux)"),
]

# The disk exists for this shell and its children alone.
SCRIPT = """
disk=$2
mount -t tmpfs -o size=$1 small "$disk" || exit 99
shift 2
"$@"
echo "status $?" >&2
find "$disk" -name 'run.json*' -o -name '*.tmp*' >&2
"""


@pytest.mark.parametrize(
    ("size", "steps"), [("40k", 400), ("8k", 4)], ids=["while training", "from the start"]
)
def test_a_full_disk(tmp_path: Path, small_tokens: Path, size: str, steps: int) -> None:
    run = Case("single").spec(1)
    # Of two threads each waits for the other where other tests have the cores.
    world = replace(run.world, threads_per_rank=1)
    run = replace(run, world=world, workload=replace(run.workload, steps=steps))
    disk = tmp_path / "disk"
    disk.mkdir()
    words = words_of(run, small_tokens, tmp_path)
    train = [sys.executable, "-m", "pipeline", *words[:-1], f"--out={disk}/run"]
    done = ran(
        ["unshare", "--mount", "sh", "-c", SCRIPT, "sh", size, str(disk), *train], timeout=400
    )
    said = done.stderr.splitlines()
    assert "status 2" in said, done.stderr
    (error,) = [line for line in said if line.startswith("error:")]
    assert "No space left on device" in error
    assert not [line for line in said if "run.json" in line or ".tmp" in line]
