"""A BERT learns from the words around a gap, on the text that ships with every CPython.

How often each token stands there is learned in a few steps, and a masked loss stays at that entropy
until attention has found the neighbours. So they are few, and weights are drawn as wide as it helps
such a narrow model. Run with `-s` to see both figures.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from pipeline import strategies
from pipeline.corpus.batches import Batches
from pipeline.corpus.build import TokensSpec, build
from pipeline.study.spec import ModelSpec, ObjectiveSpec, OptimiserSpec, WorkloadSpec
from pipeline.training.clock import Clock
from pipeline.training.loop import Hooks, Loop
from tests.parity.cases import Case

pytestmark = [pytest.mark.system, pytest.mark.slow]

CHARACTERS, CONTEXT, BATCH, STEPS, LAST = 96, 16, 32, 300, 50
MODEL = ModelSpec(
    "transformers", 2, 320, 5, CONTEXT, CHARACTERS + 1, "BertForMaskedLM",
    {"intermediate_size": 1600, "initializer_range": 0.05},
)  # fmt: skip
"""3.0 M parameters, nearly all in its layers; the last token is the mask."""
OPTIMISER = OptimiserSpec("adamw", 1e-3, 0.9, 0.98, 1e-8, 0.01, 1.0, "linear", 40)
OBJECTIVE = ObjectiveSpec("masked", mask_token=CHARACTERS, share=0.15)
BELOW = 0.2
"""Nats that the loss of the last steps must be below the entropy: 2.96 below 3.29 was measured."""


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Threads that wait for one another take minutes where other tests have the cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
def test_the_loss_falls_below_the_entropy_of_the_masked_tokens(tmp_path: Path) -> None:
    tokens = {
        "corpus": {"source": "python-docs"},
        "tokenizer": {"kind": "char", "vocab_size": CHARACTERS},
        "context": CONTEXT,
        "model_vocab_size": MODEL.vocab_size,
        "min_tokens": BATCH * CONTEXT + 1,
    }
    build(TokensSpec.from_dict(tokens), tmp_path / "tokens", 2)
    spec = replace(
        Case("single").spec(1),
        model=MODEL,
        optimiser=OPTIMISER,
        objective=OBJECTIVE,
        workload=WorkloadSpec(BATCH, 1, STEPS, 1, "strong", 0),
    )
    batches = Batches(tmp_path / "tokens", CONTEXT, BATCH, spec.seed, OBJECTIVE)
    losses: list[float] = []
    hooks = Hooks(lambda step: losses.append(step.loss or np.inf), lambda *_: None)
    Loop(spec, strategies.load("single", {}), batches, 0, Clock(torch.device("cpu"))).run(hooks)
    hidden = []
    for step in range(STEPS):
        arrays = batches.slice(step, 0, BATCH)
        assert arrays.weights is not None
        hidden.append(arrays.targets[arrays.weights[:, 0] > 0])
    counts = np.bincount(np.concatenate(hidden))
    shares = counts[counts > 0] / counts.sum()
    entropy = float(-(shares * np.log(shares)).sum())
    loss = float(np.mean(losses[-LAST:]))
    print(f"\n{STEPS} steps: loss {loss:.3f}, unigram entropy of masked tokens {entropy:.3f} nats")
    assert loss < entropy - BELOW
