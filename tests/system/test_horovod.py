"""The real Horovod among real ranks, where the parity suite does not look.

They meet over a network on emulated nodes (`test_emulated`) and in `test_slurm_in_image`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pipeline.launch.torchrun import Place, RunPaths, worker_options
from pipeline.strategies.horovod.plan import why_unusable
from pipeline.training import fence
from pipeline.training.step_files import whole_steps
from tests.parity.cases import STEPS, Case
from tests.system import horovod_worker

WORKER = Path(horovod_worker.__file__)
ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
HOROVODRUN = [str(BIN / "horovodrun"), "-np", "2", "-H", "localhost:2", sys.executable]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(why_unusable() is not None, reason=f"Horovod is {why_unusable()}"),
]


def start(*command: str) -> str:
    """Words of the command, which must end well."""
    launcher = ("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "HOROVOD_", "GLOO_", "TORCHELASTIC_")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(launcher)}
    path = f"{BIN}{os.pathsep}{kept.get('PATH', '')}"
    environment = kept | {"PATH": path, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said[-4000:]
    return said


def read_ranks(out: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(out.glob("rank*.json"))]


@pytest.mark.parametrize("launcher", [TORCHRUN, HOROVODRUN], ids=["torchrun", "horovodrun"])
def test_ranks_that_start_apart_train_as_one_process_does(tmp_path: Path, launcher) -> None:
    said = start(*launcher, str(WORKER), str(tmp_path), "horovod")
    assert "skip_synchronize" not in said, "Horovod warns where a step reduces a second time"
    ranks = read_ranks(tmp_path)
    assert len(ranks) == 2 and ranks[0]["weights"] == ranks[1]["weights"]
    (tmp_path / "one").mkdir()
    horovod_worker.train(tmp_path / "one", "single")
    (alone,) = read_ranks(tmp_path / "one")
    # A hidden optimiser step at the start, a sum for a mean, a clip before the reduction or a
    # dropped micro-batch each move the weights by 1e-3 and more.
    for mine, theirs in zip(ranks[0]["steps"], alone["steps"], strict=True):
        assert mine == pytest.approx(theirs, rel=1e-5)
    for name, values in alone["weights"].items():
        assert ranks[0]["weights"][name] == pytest.approx(values, abs=1e-5)


def test_horovodrun_takes_the_arguments_of_torchrun(tmp_path: Path, small_tokens: Path) -> None:
    """It starts the very worker of `python -m pipeline train`."""
    spec = tmp_path / "spec.json"
    spec.write_text(Case("horovod").spec(2).to_json())
    paths = RunPaths(spec, small_tokens, tmp_path)
    paths.ranks.mkdir()
    options = worker_options(paths, Place(1, 1, token=fence.claim(paths.ranks)), None)
    start(*HOROVODRUN, "-m", "pipeline.training.worker", *options)
    ranks = [json.loads((paths.ranks / f"rank{r}.json").read_text())["rank"] for r in range(2)]
    assert [(rank["rank"], rank["node"]) for rank in ranks] == [(0, 0), (1, 0)]
    assert ranks[0]["weights_sha256"] == ranks[1]["weights_sha256"]
    assert whole_steps(paths.ranks, 0, STEPS) == STEPS
