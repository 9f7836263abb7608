"""`compile: true`: the same steps through torch.compile."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline import strategies
from pipeline.study.expansion import expand
from pipeline.study.load import load_study
from pipeline.training.clock import Clock
from pipeline.training.loop import Hooks, Loop
from tests.golden.test_golden import SyntheticBatches

pytestmark = [pytest.mark.system, pytest.mark.slow]


def losses(compiled: bool) -> list[float | None]:
    run = expand(load_study(Path("workflow/config/smoke/study.yaml")))[0]
    work = replace(run.workload, global_batch=2, steps=2, untimed_steps=0)
    run = replace(run, compile=compiled, workload=work, model=replace(run.model, num_layers=1))
    found: list[float | None] = []
    batches: Any = SyntheticBatches(run)
    loop = Loop(run, strategies.load("single", {}), batches, 0, Clock(torch.device("cpu")))
    loop.run(Hooks(lambda step: found.append(step.loss), lambda *_: None))
    blocks: Any = loop.model.blocks
    assert [block._compiled_call_impl is not None for block in blocks] == [compiled]
    assert loop.model._compiled_call_impl is None
    return found


def test_compiled_steps_equal_eager_ones() -> None:
    assert losses(compiled=True) == pytest.approx(losses(compiled=False), rel=1e-5)
