"""The GPU kit as a whole: on the GPUs of this machine, else its trial on the CPU."""

import json
import os
import sys
from pathlib import Path

import torch

from tests.programs import ran


def test_every_point_holds_with_every_strategy(tmp_path) -> None:
    device = "cuda" if torch.cuda.device_count() else "cpu"
    command = [sys.executable, "-m", "bench.gpu", f"--out={tmp_path}/gpu.json"]
    # On a CPU two threads a rank would wait for one another where other tests have the cores.
    done = ran([*command, f"--device={device}"], env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(Path(tmp_path, "gpu.json").read_text())
    for ranks in (1, 2)[: torch.cuda.device_count() or 2]:
        points = found[f"points_on_{ranks}"]
        assert [*points] == ["phases", "clocks", "memory", "gradients"]
        several = {"ddp", "sharded", "zero1", "zero2", "tensor", "hybrid"}
        assert several | {"single"} <= {*points["phases"]}
        assert several <= {*points["gradients"]["bf16"]}
