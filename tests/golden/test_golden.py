"""Golden loss and gradient norm of every shipped study's model, optimiser and seed.

Parity ties the other strategies to `single`, so the cells of a study need no files of their own.

The first steps of `single` on synthetic tokens (so that no corpus version matters), one sequence a
step. The files move only by `pytest tests/golden --write-golden`.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pipeline import strategies
from pipeline.models import num_parameters
from pipeline.study.expansion import expand
from pipeline.study.load import find_study, load_study, shipped_studies
from pipeline.study.spec import RunSpec
from pipeline.training.clock import Clock
from pipeline.training.loop import Loop

MOST_PARAMETERS = 2e8
"""Larger models are not trained here."""
STEPS = 2
TOLERANCE = 1e-4
"""Relative: other processors sum in another order."""


class SyntheticBatches:
    """Token ids from a fixed generator; the same interface as pipeline.corpus.batches.Batches."""

    def __init__(self, spec: RunSpec) -> None:
        self.spec = spec

    def of(self, context: int, global_batch: int) -> SyntheticBatches:
        """These studies have one phase."""
        return self

    def slice(self, step: int, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        model = self.spec.model
        generator = np.random.Generator(np.random.Philox(key=[self.spec.seed, step]))
        ids = generator.integers(0, model.vocab_size, (stop - start, model.context + 1))
        return ids[:, :-1], ids[:, 1:]


def studies() -> list[str]:
    """Shipped studies; of those of one folder and model one is enough."""
    shipped = shipped_studies()
    models = {name: load_study(path).model for name, path in shipped.items()}
    return [
        name
        for name, model in models.items()
        if num_parameters(model) < MOST_PARAMETERS
        and (shipped[name].stem == "study" or model != models[shipped[name].parent.name])
    ]


def first_steps(study: Path) -> list[dict[str, float | None]]:
    run = expand(load_study(study))[0]
    work = replace(
        run.workload, global_batch=1, accumulation_steps=1, checkpoint_every=0, phases=()
    )
    run = replace(
        run,
        strategy="single",
        options={},
        precision="fp32",
        world=replace(run.world, nodes=1, ranks_per_node=1, device="cpu", backend="gloo"),
        workload=replace(work, steps=STEPS, untimed_steps=0),
    )
    return train(replace(run, study="golden", cell="golden").to_json())


@cache
def train(run_json: str) -> list[dict[str, float | None]]:
    """Cached: two studies of one model, optimiser and seed give the same steps."""
    run = RunSpec.from_dict(json.loads(run_json))
    steps: list[dict[str, float | None]] = []
    batches: Any = SyntheticBatches(run)
    loop = Loop(run, strategies.load("single", {}), batches, 0, Clock(torch.device("cpu")))
    loop.run(lambda s: steps.append({"loss": s.loss, "grad_norm": s.grad_norm}))
    return steps


@pytest.mark.parametrize("study", studies())
def test_first_steps_are_the_golden_ones(study: str, request: pytest.FixtureRequest) -> None:
    golden = Path(__file__).with_name(f"{study}.json")
    steps = first_steps(find_study(study))
    if request.config.getoption("--write-golden"):
        golden.write_text(json.dumps(steps, indent=1) + "\n")
    expected = json.loads(golden.read_text())
    assert len(expected) == STEPS
    for step, gold in zip(steps, expected, strict=True):
        assert step == pytest.approx(gold, rel=TOLERANCE)
