"""The GPU kit as a whole: on the GPUs of this machine, else its trial on the CPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = [pytest.mark.system, pytest.mark.slow]


def test_every_point_holds_and_every_cell_takes_the_steps_of_a_single_device(tmp_path) -> None:
    device = "cuda" if torch.cuda.device_count() else "cpu"
    command = [sys.executable, "-m", "bench.gpu", f"--out={tmp_path}/gpu.json"]
    done = subprocess.run([*command, f"--device={device}"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(Path(tmp_path, "gpu.json").read_text())
    for ranks in (1, 2)[: torch.cuda.device_count() or 2]:
        points, cells = (found[f"{part}_on_{ranks}"] for part in ("points", "cells"))
        assert [*points] == ["phases", "clocks", "memory", "float16", "gradients"]
        assert {"single", "ddp", "sharded", "tensor", "hybrid"} <= {*points["phases"]}
        assert {*points["gradients"]["bf16"]} >= {"ddp", "sharded", "tensor", "hybrid"}
        trained = {name for name, cell in cells.items() if cell["status"] == "ok"}
        assert trained >= {"single", "dps", "zero1", "zero2", "zero3", "tensor", "hybrid"}
