"""`compile: true`: the same steps through torch.compile."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline import strategies
from pipeline.emulation.pacing import UNPACED, Pacer
from pipeline.study.expansion import expand
from pipeline.study.load import load_study
from pipeline.training.clock import Clock
from pipeline.training.loop import Loop
from tests.golden.test_golden import SyntheticBatches
from tests.ranks import group_alone


def losses(
    whole: bool,
    strategy: str,
    compiled: bool,
    options: Any = None,
    pacer: Pacer = UNPACED,
    **changed: Any,
) -> list[float | None]:
    """Of two steps on one rank, of a model of one layer."""
    run = expand(load_study(Path("workflow/config/smoke/study.yaml")))[0]
    work = replace(run.workload, global_batch=2, steps=2, untimed_steps=0)
    world = replace(run.world, yardstick=None)
    run = replace(run, compile=compiled, workload=work, model=replace(run.model, num_layers=1))
    run = replace(run, strategy=strategy, options=options or {}, **{"world": world, **changed})
    found: list[float | None] = []
    batches: Any = SyntheticBatches(run)
    with group_alone():
        chosen = strategies.load(strategy, run.options)
        loop = Loop(run, chosen, batches, 0, Clock(torch.device("cpu"), pacer))
        loop.run(lambda step: found.append(step.loss))
    model: Any = loop.model
    assert (model._compiled_call_impl is not None) == (whole and compiled)
    blocks = [block._compiled_call_impl is not None for block in model.blocks]
    assert blocks == [compiled and not whole]
    return found


@pytest.mark.parametrize(
    ("whole", "strategy", "options", "precision", "accuracy"),
    [
        (True, "ddp", {}, "fp32", 1e-5),
        (False, "ddp", {"bucket_cap_mb": 0.25}, "fp32", 1e-5),
        (False, "ddp", {}, "bf16_masters", 3e-3),  # our own buckets
        (False, "sharded", {}, "fp32", 1e-5),
        (False, "tensor", {}, "fp32", 1e-5),
    ],
)
def test_compiled_steps_equal_eager_ones(whole, strategy, options, precision, accuracy) -> None:
    eager, compiled = (
        losses(whole, strategy, compiled, options, precision=precision)
        for compiled in (False, True)
    )
    assert compiled == pytest.approx(eager, rel=accuracy)


def test_recomputed_blocks_and_those_of_a_yardstick_are_compiled_one_by_one() -> None:
    run = expand(load_study(Path("workflow/config/smoke/study.yaml")))[0]
    work = replace(run.workload, global_batch=2, steps=1, untimed_steps=0, recompute=True)
    losses(False, "single", True, workload=work)
    losses(False, "single", True, pacer=Pacer(forward_seconds=1.0))
