"""The bench for a GPU, tried on the CPU in an environment of torch, numpy and PyYAML alone."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

from bench.gpu import Bench

ROOT = Path(__file__).resolve().parents[3]
BARE = """
import sys
from importlib.machinery import PathFinder

find = PathFinder.find_spec

def find_what_is_there(name, path=None, target=None):
    return None if name.partition(".")[0] in {names} else find(name, path, target)

PathFinder.find_spec = staticmethod(find_what_is_there)
sys.argv = ["bench.gpu", *{arguments}]
from bench.gpu import Bench, main
Bench.tests = lambda self: {{"returncode": 0}}
sys.exit(main())
"""
BLOCKED = [
    *("psutil", "pynvml", "pandas", "scipy", "snakemake", "seaborn", "matplotlib", "pyarrow"),
    *("datasets", "horovod", "typst", "hypothesis", "accelerate", "dill"),
]


def test_it_needs_no_other_package_and_every_part_has_a_result(tmp_path: Path) -> None:
    out = tmp_path / "cpu.zip"
    arguments = ["--out", str(out), "--device", "cpu", "--size", "tiny", "--rounds", "2", "--eager"]
    done = subprocess.run(
        [sys.executable, "-c", BARE.format(names=set(BLOCKED), arguments=arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    with zipfile.ZipFile(out) as archive:
        found = json.loads(archive.read("gpu.json"))
    assert {name: part.get("error") for name, part in found.items() if "error" in part} == {}
    assert found["parity"]["largest_relative_deviation"] == 0
    assert found["parity"]["largest_relative_deviation_of_norms"] == 0
    assert len(found["parity"]["grad_norms"]) == len(found["parity"]["losses"])
    alone = found["precisions"]
    assert alone["fp32"]["over_measured_peak"] > 0
    assert "CUDA" in alone["tf32"]["error"]
    assert set(found["pairs"]["bf16"]["median_ratio"]) == {"plain"}
    assert found["phases"]["backward"] > 0


def test_out_of_time_no_precision_and_no_pair_begins() -> None:
    late = Bench("cpu", "tiny", 2, (False,), ends=0.0)
    for found in (late.precisions(), late.pairs()):
        assert found and all("left_out" in one for one in found.values())


def test_without_a_gpu_it_says_so(tmp_path: Path) -> None:
    import torch

    if torch.cuda.is_available():
        return
    command = [sys.executable, "-m", "bench.gpu", "--out", str(tmp_path / "gpu.zip")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == "error: torch sees no CUDA device; --device cpu tries the bench\n"
