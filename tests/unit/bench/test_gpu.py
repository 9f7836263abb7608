"""The GPU kit ends early with one line, whichever of its points fails; each by a mimic on a CPU."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

from bench import gpu
from pipeline.parallel.step import Stepper
from pipeline.training.loop import Loop
from pipeline.training.sampler import Sampler
from tests.ranks import group_alone

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Two strategies, on one rank."""
    monkeypatch.setattr(gpu, "NAMES", ("single", "ddp"))
    with group_alone():
        yield


def a_rate_that_stays(patch: pytest.MonkeyPatch) -> None:
    def run_freely(loop: Loop, count: int) -> dict[str, float]:
        for step in range(count):
            loop.trainable.step(loop.read(step))
        return {"steps": count, "step_seconds": 1e-3}

    patch.setattr(Loop, "_run_freely", run_freely)


def no_memory(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Sampler, "summary", lambda _: {"peak_memory_bytes": 5})


def a_norm_of_ddp(patch: pytest.MonkeyPatch) -> None:
    real = Stepper.reduced

    def reduced(stepper: Stepper) -> None:
        real(stepper)
        if isinstance(stepper.forward, DistributedDataParallel):
            weight: Any = stepper.model.get_parameter(gpu.NORM)
            weight.grad *= 1.5

    patch.setattr(Stepper, "reduced", reduced)


def blind(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(gpu, "EACH", 100)


LINES: dict[Callable[[pytest.MonkeyPatch], None], str] = {
    a_rate_that_stays: r"point 5 \(clocks\) fails: single: freely running steps moved the weights",
    no_memory: r"point 7 \(memory\) fails: expected \d+ <= allocated .* found {'peak_memory_b",
    a_norm_of_ddp: r"point 9 \(gradients\) fails: ddp in fp32, step 0: .*h.1.ln_2.weight has",
    blind: r"point 9 \(gradients\) fails: .* 1.5 times as large is not noticed in bf16",
}


@pytest.mark.parametrize("mimic", LINES, ids=lambda one: one.__name__)
def test_the_first_point_that_fails_ends_the_kit_with_one_line(
    mimic, tmp_path: Path, monkeypatch, capsys
) -> None:
    began: list[int] = []
    mimic(monkeypatch)
    tried = gpu.try_points(CPU)
    assert json.loads(json.dumps(tried)) == tried, "it is written"
    names = [*tried][: [*tried].index("failed")]
    assert names == ["phases", "clocks", "memory", "gradients"][: len(names)]

    def points(device: str, ranks: int) -> dict[str, Any]:
        began.append(ranks)
        return tried

    monkeypatch.setattr(gpu, "points", points)
    assert gpu.main(["--device=cpu", f"--out={tmp_path}/gpu.json"]) == 1
    assert began == [1], "not on two"
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(LINES[mimic], line), line
    assert json.loads((tmp_path / "gpu.json").read_text())["points_on_1"] == tried


def test_without_a_gpu_it_is_one_line(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    assert gpu.main([f"--out={tmp_path}/gpu.json"]) == 2
    assert capsys.readouterr().err.startswith("error: torch sees no CUDA device: ")
    assert not (tmp_path / "gpu.json").exists()
