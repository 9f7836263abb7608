"""Drift between two sound trainings, which the bands of parity must allow.

    python -m bench.parity_drift --out bench/results/parity_drift.json

A small GPT-2 is trained on this machine's CPU in one thread, in each precision and for each seed,
with the batch of a step in one piece and in two. The pieces are what data-parallel ranks
compute: the same mean of the same gradients, in another order of summation. One more training
sends the gradients of the pieces as float16, as Horovod's compression does. Compared are loss and
unclipped gradient norm, as `pipeline/metrics/parity.py` compares those of a study; the largest
deviation up to a step is kept at a few steps. Seeds are compared with one another in the same way:
that is how far apart two trainings are which nobody would call equal. The first steps are measured
in all precisions, thousands of steps (`LONG`) in three of them.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bench.scaffold import STUDY, make_tokens, parser, write
from pipeline.corpus.batches import Batches
from pipeline.machine.facts import cpu_model
from pipeline.metrics.parity import relative_deviation
from pipeline.metrics.statistics import Floats
from pipeline.parallel.step import Stepper
from pipeline.parallel.types import Batch, Parts, Trainable
from pipeline.records import Step
from pipeline.strategies.single import Single
from pipeline.study.expansion import expand
from pipeline.study.load import load_study
from pipeline.study.spec import ModelSpec, RunSpec, WorkloadSpec
from pipeline.training.clock import Clock
from pipeline.training.loop import Loop

# Text, tokeniser and optimiser are those of the default study; the model is smaller.
MODEL = ModelSpec("gpt2", num_layers=2, width=32, num_heads=2, context=16, vocab_size=1024)
GLOBAL_BATCH = 8
PIECES = 2
OVER_WIRE = "fp32 over a float16 wire"
SEEDS = (20220613, 20220614, 20220615)
PRECISIONS = ("fp32", "bf16", "fp16", "amp_o2", "bf16_masters")
AT_STEPS = (1, 10, 20, 50, 100)
LONG, LONG_SEEDS = ("fp32", "bf16", "bf16_masters"), SEEDS[:2]
LONG_AT_STEPS = (*AT_STEPS, 1000, 4000)


@dataclass(frozen=True)
class Training:
    """Loss and unclipped gradient norm of every step, each of shape (steps,); NaN: not finite."""

    loss: Floats
    norm: Floats

    @property
    def skipped(self) -> Any:
        """Steps whose update a loss scaler skipped, shape (steps,)."""
        return np.isnan(self.norm) & ~np.isnan(self.loss)


@dataclass(frozen=True)
class Float16Wire(Single):
    """TEST ONLY: one process computes what ranks whose gradients travel as float16 compute.

    Each piece is a rank of its own: its gradients are narrowed, added in float16, widened and
    divided by the number of ranks.
    """

    def build(self, parts: Parts) -> Trainable:
        """The shared step with that sum in place of the accumulation."""
        return _Float16Sum(parts.prepare())


class _Float16Sum(Stepper):
    def accumulate(self, microbatches: Sequence[Batch]) -> Tensor:
        """Mean loss of the pieces; leaves the mean of their narrowed gradients."""
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        sums = [torch.zeros_like(p, dtype=torch.float16) for p in parameters]
        total = torch.zeros(())
        for piece in microbatches:
            total += super().accumulate([piece])
            for one, parameter in zip(sums, parameters, strict=True):
                assert parameter.grad is not None
                one += parameter.grad.half()
        for one, parameter in zip(sums, parameters, strict=True):
            parameter.grad = one.float() / len(microbatches)
        return total / len(microbatches)


def main() -> int:
    """Train everything, compare, and write the largest deviations."""
    args = parser(__doc__).parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as work:
        tokens = make_tokens(load_study(STUDY), Path(work))
        spec = spec_of("fp32", SEEDS[0], LONG_AT_STEPS[-1])
        result = {
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "model": asdict(spec.model),
            "optimiser": asdict(spec.optimiser),
            "global_batch": GLOBAL_BATCH,
            "pieces": PIECES,
            "first": section(tokens, PRECISIONS, SEEDS, AT_STEPS),
        }
        print(json.dumps(result["first"]), flush=True)
        result["long"] = section(tokens, LONG, LONG_SEEDS, LONG_AT_STEPS)
    write(args.out, result)
    print(f"largest deviations over {LONG_AT_STEPS[-1]} steps -> {args.out}")
    return 0


def section(
    tokens: Path, precisions: Sequence[str], seeds: Sequence[int], at: Sequence[int]
) -> dict[str, Any]:
    """Largest deviations up to each step of `at`: by order, against fp32, and between seeds."""
    one: dict[tuple[str, int], Training] = {}
    order: dict[str, list[tuple[Training, Training]]] = {}
    for precision, seed in product(precisions, seeds):
        spec = spec_of(precision, seed, at[-1])
        one[precision, seed] = train(spec, tokens)
        pieces = train(in_pieces(spec), tokens)
        order.setdefault(precision, []).append((pieces, one[precision, seed]))
        if precision == "fp32" and at == AT_STEPS:
            wire = train(in_pieces(spec), tokens, Float16Wire())
            order.setdefault(OVER_WIRE, []).append((wire, one["fp32", seed]))
        print(f"{precision}, seed {seed}, {at[-1]} steps: done", flush=True)
    full = {p: [(one[p, s], one["fp32", s]) for s in seeds] for p in precisions if p != "fp32"}
    others = {p: list(combinations([one[p, s] for s in seeds], 2)) for p in precisions}
    return {
        "processor": cpu_model(),
        "seeds": list(seeds),
        "at_steps": list(at),
        "order": {name: largest(pairs, at) for name, pairs in order.items()},
        "against_fp32": {name: largest(pairs, at) for name, pairs in full.items()},
        "between_seeds": {name: largest(pairs, at) for name, pairs in others.items()},
    }


def spec_of(precision: str, seed: int, steps: int) -> RunSpec:
    """So many steps of the default study's single device with this model.

    The learning rate falls over all steps of the longest training, in every one.
    """
    spec = next(run for run in expand(load_study(STUDY)) if run.strategy == "single")
    work = WorkloadSpec(GLOBAL_BATCH, 1, steps, 0, "strong", 0)
    return replace(
        spec,
        precision=precision,
        seed=seed,
        model=MODEL,
        optimiser=replace(spec.optimiser, schedule_steps=LONG_AT_STEPS[-1]),
        workload=work,
        world=replace(spec.world, network="loopback", link=None, cores_per_node=None),
    )


def in_pieces(spec: RunSpec) -> RunSpec:
    """The same run with every batch in `PIECES` micro-batches."""
    return replace(spec, workload=replace(spec.workload, accumulation_steps=PIECES))


def train(spec: RunSpec, tokens: Path, strategy: Single | None = None) -> Training:
    """All steps of a run in this process."""
    steps: list[Step] = []
    batches = Batches(tokens, spec.model.context, spec.workload.global_batch, spec.seed)
    loop = Loop(spec, strategy or Single(), batches, 0, Clock(torch.device("cpu")))
    loop.run(steps.append)
    return Training(_series(s.loss for s in steps), _series(s.grad_norm for s in steps))


def _series(values: Iterable[float | None]) -> Floats:
    return np.asarray([np.nan if v is None else v for v in values], dtype=np.float64)


def largest(pairs: Sequence[tuple[Training, Training]], at: Sequence[int]) -> dict[str, Any]:
    """Largest deviation of any pair up to each step of `at`, and all steps that were left out.

    A step that a loss scaler skipped in either is left out and counted.
    """
    drift: dict[str, Any] = {}
    for name in ("loss", "norm"):
        apart = []
        for own, other in pairs:
            deviation = relative_deviation(getattr(own, name), getattr(other, name))
            deviation[own.skipped | other.skipped] = 0.0
            apart.append(deviation)
        worst = np.max(apart, axis=0)
        drift[name] = [float(f"{worst[:count].max():.3g}") for count in at]
    drift["skipped"] = int(sum((own.skipped | other.skipped).sum() for own, other in pairs))
    return drift


if __name__ == "__main__":
    raise SystemExit(main())
