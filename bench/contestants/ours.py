"""This project: the strategy `single`, by the loop's own reading, step and report."""

from __future__ import annotations

from functools import partial

import torch

from bench.contestants.setting import OPTIMISER, Setting, Tokens
from pipeline import strategies
from pipeline.models.build import build_model, compile_blocks
from pipeline.parallel.types import NOT_PROFILED, Batch, Parts, Phases
from pipeline.precision import make_precision
from pipeline.study.spec import WorldSpec
from pipeline.training.optimiser import make_optimiser

SEED = 11


class Ours:
    """The shared step of one process."""

    name = "samestep"

    def __init__(self, setting: Setting, phases: Phases = NOT_PROFILED) -> None:
        self.device = torch.device(setting.device)
        backend = {"cpu": "gloo", "cuda": "nccl"}[setting.device]
        world = WorldSpec(1, 1, setting.device, backend, "loopback")
        strategy = strategies.load("single", {})
        self.model = build_model(setting.model, SEED).to(self.device)
        if setting.compiled:
            compile_blocks(self.model)
        self.trainable = strategy.build(
            Parts(
                self.model,
                partial(make_optimiser, OPTIMISER),
                strategy.layout(world),
                make_precision(setting.precision, setting.device),
                OPTIMISER.max_grad_norm,
                phases,
            )
        )
        self.tokens, self.batch, self.step = Tokens(setting), setting.batch, 0

    def train(self, steps: int) -> float:
        """Read, step and report, as the training loop does between two barriers."""
        loss = float("nan")
        for _ in range(steps):
            self.trainable.step([self.read()])
            loss = self.trainable.report().loss
        return loss

    def read(self) -> Batch:
        """The next batch, on the device."""
        self.step += 1
        inputs, targets = (
            torch.from_numpy(ids).to(self.device)
            for ids in self.tokens.slice(self.step, 0, self.batch)
        )
        return Batch(inputs, targets)
