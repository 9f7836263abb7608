"""One rank of a small training run for test_horovod.py: prints nothing, leaves one JSON a rank.

    horovod_worker.py OUT STRATEGY PRECISION WORLD MICROBATCHES STEPS [apart] [resumed]

The model is small, with a tied weight, and the batches depend on the step alone, so every rank
count trains the same thing.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from pipeline import strategies
from pipeline.errors import SamestepError
from pipeline.parallel.types import Batch, Parts
from pipeline.precision import make_precision
from pipeline.study.spec import WorldSpec
from pipeline.training import checkpoint

GLOBAL_BATCH, CONTEXT, VOCAB = 8, 6, 32
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


def microbatches(step: int, first: int, last: int, num: int) -> list[Batch]:
    """This rank's slice of the global batch of `step`, cut into `num` pieces."""
    generator = torch.Generator().manual_seed(1000 + step)
    tokens = torch.randint(0, VOCAB, (GLOBAL_BATCH, CONTEXT + 1), generator=generator)
    parts = tokens[first:last].chunk(num)
    return [(part[:, :-1].contiguous(), part[:, 1:].contiguous()) for part in parts]


def train(out: Path, args: Sequence[str]) -> None:
    """Train and leave losses, norms and final weights of this rank in `out`."""
    name, precision, world_size, num_micro, num_steps, *flags = args
    rank = int(os.environ.get("RANK", os.environ.get("HOROVOD_RANK", "0")))
    run = Run(name, precision, int(world_size), int(num_micro), rank, apart="apart" in flags)
    kept, last = out / "checkpoints", int(num_steps)
    if "resumed" in flags:
        run.train(range(last // 2), None, kept)
        model, results = run.train(range(last // 2, last), kept, None)
    else:
        model, results = run.train(range(last), None, None)
    weights = {key: value.float().flatten().tolist() for key, value in model.state_dict().items()}
    tied = model.head.weight is model.embed.weight
    about = {"steps": results, "weights": weights, "tied": tied}
    (out / f"rank{rank}.json").write_text(json.dumps(about), encoding="utf-8")


@dataclass(frozen=True)
class Run:
    """How one rank trains; with `apart` its first weights differ from the root's."""

    name: str
    precision: str
    world_size: int
    num_micro: int
    rank: int
    apart: bool

    def train(
        self, steps: range, resume: Path | None, keep: Path | None
    ) -> tuple[Tied, list[dict[str, float]]]:
        """Build, perhaps load, take `steps`, perhaps keep the state, close."""
        torch.manual_seed(7)
        model = Tied()
        if self.apart and self.rank:
            nn.init.normal_(model.mix.weight)
        optimiser = partial(torch.optim.AdamW, lr=1e-2, fused=True)
        strategy = strategies.load(self.name, {})
        strategy.check()
        layout = strategy.layout(WorldSpec(1, self.world_size, "cpu", "gloo", "loopback"))
        precision = make_precision(self.precision, "cpu")
        trainable = strategy.build(Parts(model, optimiser, layout, precision, MAX_GRAD_NORM))
        if resume:
            trainable.load(checkpoint.load(resume, steps.start))
        first, last = layout.batch_slice(self.rank, GLOBAL_BATCH)
        results = []
        for step in steps:
            trainable.barrier()
            trainable.step(microbatches(step, first, last, self.num_micro))
            results.append(asdict(trainable.report()))
        if keep:
            ranks = checkpoint.Ranks(self.rank, self.world_size, "apart", trainable.agree)
            checkpoint.save(keep, steps.stop, trainable.shards(), "horovod", ranks)
        trainable.close()
        return model, results


def main() -> int:
    """Exit 2 with the message of an expected error."""
    torch.set_num_threads(1)
    out = Path(sys.argv[1])
    try:
        train(out, sys.argv[2:])
    except SamestepError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
