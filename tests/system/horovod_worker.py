"""One rank of a small training run for test_horovod.py; leaves one JSON a rank.

    horovod_worker.py OUT STRATEGY

The model is small, with a tied weight, and the batches depend on the step alone, so every rank
count trains the same thing. The first weights of ranks other than the root differ from its own.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from pipeline import strategies
from pipeline.parallel.types import Batch, Parts
from pipeline.precision import make_precision
from pipeline.study.spec import WorldSpec

GLOBAL_BATCH, CONTEXT, VOCAB = 8, 6, 32
STEPS, MICROBATCHES = 8, 2
MAX_GRAD_NORM = 0.5


class Tied(nn.Module):
    """Embedding and output share one matrix, as in GPT-2; the forward pass returns the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, 16)
        self.mix = nn.Linear(16, 16)
        self.head = nn.Linear(16, VOCAB, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy."""
        logits = self.head(torch.tanh(self.mix(self.embed(inputs))))
        return nn.functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


def microbatches(step: int, first: int, last: int) -> list[Batch]:
    """This rank's slice of the global batch of `step`, in pieces."""
    generator = torch.Generator().manual_seed(1000 + step)
    tokens = torch.randint(0, VOCAB, (GLOBAL_BATCH, CONTEXT + 1), generator=generator)
    parts = tokens[first:last].chunk(MICROBATCHES)
    return [Batch(part[:, :-1].contiguous(), part[:, 1:].contiguous()) for part in parts]


def train(out: Path, name: str) -> None:
    """Train and leave losses, norms and final weights of this rank in `out`."""
    world_size = 2 if name == "horovod" else 1
    rank = int(os.environ.get("RANK", os.environ.get("HOROVOD_RANK", "0")))
    torch.manual_seed(7)
    model = Tied()
    if rank:
        nn.init.normal_(model.mix.weight)
    optimiser = partial(torch.optim.AdamW, lr=1e-2, fused=True)
    strategy = strategies.load(name, {})
    layout = strategy.layout(WorldSpec(1, world_size, "cpu", "gloo", "loopback"))
    precision = make_precision("fp32", "cpu")
    trainable = strategy.build(Parts(model, optimiser, layout, precision, MAX_GRAD_NORM))
    first, last = layout.batch_slice(rank, GLOBAL_BATCH)
    results = []
    for step in range(STEPS):
        trainable.barrier()
        trainable.step(microbatches(step, first, last))
        results.append(asdict(trainable.report()))
    trainable.close()
    weights = {key: value.float().flatten().tolist() for key, value in model.state_dict().items()}
    about = {"steps": results, "weights": weights}
    (out / f"rank{rank}.json").write_text(json.dumps(about), encoding="utf-8")


if __name__ == "__main__":
    torch.set_num_threads(1)
    train(Path(sys.argv[1]), sys.argv[2])
