"""`horovodrun` starts the very worker of `python -m pipeline train`, with the same arguments."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.launch.torchrun import Place, RunPaths, worker_options
from pipeline.strategies.horovod.plan import why_unusable
from pipeline.training import fence
from pipeline.training.step_files import whole_steps
from tests.parity.cases import STEPS, Case
from tests.system.test_horovod import environment

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(why_unusable() is not None, reason=f"Horovod is {why_unusable()}"),
]


WORKER = "pipeline.training.worker"


def test_horovodrun_takes_the_arguments_of_torchrun(tmp_path: Path, small_tokens: Path) -> None:
    spec = tmp_path / "spec.json"
    spec.write_text(Case("horovod").spec(2).to_json())
    paths = RunPaths(spec, small_tokens, tmp_path)
    paths.ranks.mkdir()
    options = worker_options(paths, Place(1, 1, token=fence.claim(paths.ranks)), None)
    horovodrun = str(Path(sys.executable).with_name("horovodrun"))
    done = subprocess.run(
        [horovodrun, "-np", "2", "-H", "localhost:2", sys.executable, "-m", WORKER, *options],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    ranks = [json.loads((paths.ranks / f"rank{r}.json").read_text())["rank"] for r in range(2)]
    assert [(rank["rank"], rank["node"]) for rank in ranks] == [(0, 0), (1, 0)]
    assert ranks[0]["weights_sha256"] == ranks[1]["weights_sha256"]
    assert whole_steps(paths.ranks, 0, STEPS) == STEPS
