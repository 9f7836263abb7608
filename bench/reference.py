"""A step of each strategy against the library that it follows, in alternating pairs.

    python -m bench.reference --out bench/results/reference.json [--minutes 20]
    python -m bench.reference --out bench/results/reference.json --page docs/strategies.md

The second line runs nothing: it renews the table of these results in the page.
`contestants/originals.py` has those steps. Both of a pair train the same model from the same
weights on the same batches, on ranks of this machine over the loopback, in short blocks of steps
whose order is drawn anew in each round. A ratio is of two blocks of one round; the result has the
median over the rounds and its interval. Under 1: this project is faster. Losses are compared over
the first steps, bytes are counted as in profiled runs. The strategy `deepspeed` is DeepSpeed's own
engine: where it is installed, `sharded` is held against it.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from bench.contestants import OPTIMISER, SIZES, Setting, Tokens, originals
from bench.contestants.originals import Step
from bench.scaffold import about, in_turn, parser, shown, write
from pipeline import strategies
from pipeline.files import replace_marked
from pipeline.models.build import build_model
from pipeline.parallel.collectives import heard_by
from pipeline.parallel.counted import Counted
from pipeline.parallel.mesh import Layout
from pipeline.parallel.types import Batch, Parts
from pipeline.precision import make_precision
from pipeline.study.spec import ModelSpec, WorldSpec
from pipeline.training.clock import Clock
from pipeline.training.phases import PhaseTimer

SEED = 11
LEAST_ROUNDS, MOST_ROUNDS = 6, 40
COMPARED_STEPS = 20
"""Steps whose losses are compared; later the last bits of two sound trainings drift apart."""

LLAMA = {
    name: ModelSpec(
        "transformers", max(2, spec.num_layers), spec.width, spec.num_heads, spec.context,
        spec.vocab_size, architecture="LlamaForCausalLM",
        config={"intermediate_size": 2 * spec.width},
    )
    for name, spec in SIZES.items()
}  # fmt: skip
"""For `tensor`: torch's plan cuts query, key and value by themselves, which GPT-2 has in one. Its
ends are not tied, which torch's pipelines do not know."""


@dataclass(frozen=True)
class Pair:
    """A strategy with its options, and what makes the reference's step of a model.

    `ranks`: how many train; `package`: what the reference needs besides torch.
    """

    strategy: str
    reference: Callable[[nn.Module], Step]
    options: Mapping[str, Any] = field(default_factory=dict)
    models: Mapping[str, ModelSpec] = field(default_factory=lambda: SIZES)
    ranks: int = 2
    package: str = "torch"

    @property
    def about(self) -> str:
        """Description of the reference: the first line of its docstring."""
        function = getattr(self.reference, "func", self.reference)
        return str(function.__doc__).partition("\n")[0].rstrip(".")


HEAD = """\
| strategy | reference | ranks | loss deviation | time of a step, ours / theirs | bytes of both |
|---|---|---|---|---|---|"""

PAIRS = (
    Pair("ddp", originals.ddp),
    Pair("ddp", originals.fp16_hook, {"compression": "fp16"}),
    Pair("sharded", originals.zero_redundancy, {"stage": 1}),
    Pair("sharded", partial(originals.fsdp, reshard=False), {"stage": 2}),
    Pair("sharded", partial(originals.fsdp, reshard=True), {"stage": 3}),
    Pair("sharded", originals.hybrid_fsdp, {"stage": 2, "ranks": 2}, ranks=4),
    Pair("sharded", partial(originals.deepspeed, stage=1), {"stage": 1}, package="deepspeed"),
    Pair("sharded", partial(originals.deepspeed, stage=3), {"stage": 3}, package="deepspeed"),
    Pair("tensor", originals.tensor_parallel, models=LLAMA),
    Pair("tensor", originals.fsdp_and_tensor, {"ranks": 2, "zero_stage": 3}, LLAMA, ranks=4),
    Pair("pipeline_parallel", originals.pipeline, {"microbatches": 2}, LLAMA),
    Pair("context", originals.ring_attention, {"ranks": 0}),
    Pair("horovod", originals.horovod),
    Pair("local_sgd", originals.averager, {"outer_learning_rate": 1.0, "outer_momentum": 0.0}),
)


def ours(model: nn.Module, pair: Pair, layout: Layout) -> Step:
    """This project's step and report."""
    chosen = strategies.load(pair.strategy, pair.options)
    precision = make_precision("fp32", "cpu")
    trainable = chosen.build(
        Parts(model, originals.adamw, layout, precision, OPTIMISER.max_grad_norm)
    )
    for group in trainable.optimiser.param_groups:
        group["lr"] = OPTIMISER.learning_rate

    def step(batch: Batch) -> Tensor:
        trainable.step([batch])
        return torch.tensor(trainable.report().loss)

    return step


class Contestant:
    """One of a pair, on this rank."""

    def __init__(self, step: Step, setting: Setting, layout: Layout) -> None:
        self.step, self.tokens, self.taken = step, Tokens(setting), 0
        self.slice = layout.batch_slice(dist.get_rank(), setting.batch)
        self.losses: list[float] = []

    def next(self) -> Batch:
        """This rank's part of the next batch."""
        self.taken += 1
        return Batch(*map(torch.from_numpy, self.tokens.slice(self.taken - 1, *self.slice)))

    def train(self, steps: int) -> float:
        """Seconds of a step, of all ranks: from a barrier to a barrier."""
        dist.barrier()
        begun = time.perf_counter()
        for _ in range(steps):
            self.losses.append(float(self.step(self.next())))
        dist.barrier()
        return (time.perf_counter() - begun) / steps

    def sent(self, layout: Layout, steps: int) -> float | None:
        """Bytes that this rank sends in a step; None for what torch does not see."""
        counted = Counted(layout, dist.get_rank(), steps)
        timer = PhaseTimer(Clock(torch.device("cpu")), counted)
        counted.start()
        for _ in range(steps):
            batch, begun = self.next(), time.time_ns()
            with heard_by(timer):
                timer.record(partial(self.step, batch))
                counted.communication(begun, time.time_ns())  # also what starts in C++
        # The loss of a step is one number.
        each = [one["wire_bytes"] for one in (counted.summary() or {}).get("collectives", [])]
        return sum(each) / steps if each and None not in each else None


def contestants(pair: Pair, size: str) -> dict[str, Contestant]:
    """Both, from the same weights. Collective."""
    layout, setting = layout_of(pair), Setting(size, 2 * dist.get_world_size(), "fp32", False)
    mine: Callable[[nn.Module], Step] = partial(ours, pair=pair, layout=layout)
    return {
        name: Contestant(make(build_model(pair.models[size], SEED)), setting, layout)
        for name, make in (("ours", mine), ("reference", pair.reference))
    }


def layout_of(pair: Pair) -> Layout:
    """Of as many ranks as there are."""
    world = WorldSpec(1, dist.get_world_size(), "cpu", "gloo", "loopback")
    return strategies.load(pair.strategy, pair.options).layout(world)


def compare(pair: Pair, size: str, ends: float, steps: int) -> dict[str, Any]:
    """Ratio of times and deviation of losses of one pair. Collective."""
    both = contestants(pair, size)

    def goes_on(done: int) -> bool:
        late = torch.tensor(float(time.monotonic() > ends))
        dist.all_reduce(late)  # all stop together
        return done < LEAST_ROUNDS or (not late and done < MOST_ROUNDS)

    seconds = in_turn({name: partial(one.train, steps) for name, one in both.items()}, goes_on)
    losses = zip(*(one.losses[:COMPARED_STEPS] for one in both.values()), strict=True)
    pairs = zip(seconds["ours"], seconds["reference"], strict=True)
    return {
        "strategy": pair.strategy,
        "options": dict(pair.options),
        "reference": pair.about,
        "ranks": dist.get_world_size(),
        "rounds": len(seconds["ours"]),
        "loss_deviation": max(abs(a - b) / abs(b) for a, b in losses),
        "ratio": shown([one / other for one, other in pairs]),
    }


def sent(pair: Pair, size: str) -> dict[str, float | None]:
    """Bytes that both send in a step. Collective."""
    layout = layout_of(pair)
    return {name: one.sent(layout, 2) for name, one in contestants(pair, size).items()}


def main() -> int:
    """Compare every pair and write the results, or put written ones into a page."""
    options = parser(__doc__)
    options.add_argument("--size", choices=list(SIZES), default="5M")
    options.add_argument("--minutes", type=float, default=20.0, help="of all pairs together")
    options.add_argument("--page", type=Path, help="page whose table of these results is renewed")
    args = options.parse_args()
    if "RANK" in os.environ:
        of_these_ranks(args)
    elif args.page:
        replace_marked(args.page, "reference", table(json.loads(args.out.read_text())))
    else:
        start(args)
    return 0


def start(args: argparse.Namespace) -> None:
    """Have torchrun start each number of ranks in turn, and write the results of all."""
    pairs = [pair for pair in PAIRS if runs_here(pair)]
    result: dict[str, Any] = about() | {"torch": torch.__version__, "size": args.size, "pairs": []}
    with TemporaryDirectory() as folder:
        for ranks in sorted({pair.ranks for pair in pairs}):
            share = sum(pair.ranks == ranks for pair in pairs) / len(pairs)
            part = Path(folder, f"{ranks}.json")
            words = ["-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1",
                     f"--nproc-per-node={ranks}", "-m", "bench.reference", f"--out={part}",
                     f"--size={args.size}", f"--minutes={args.minutes * share}"]  # fmt: skip
            subprocess.run([sys.executable, *words], check=True)
            result["pairs"] += json.loads(part.read_text())
    write(args.out, result)
    print(table(result))


def of_these_ranks(args: argparse.Namespace) -> None:
    """Compare the pairs of as many ranks as this is one of."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    ends, results = time.monotonic() + 60 * args.minutes, []
    pairs = [pair for pair in PAIRS if pair.ranks == dist.get_world_size() and runs_here(pair)]
    for place, pair in enumerate(pairs):
        now = time.monotonic()
        share = (ends - now) / (len(pairs) - place)
        results.append(compare(pair, args.size, now + share, steps=2))
    # Last: functional collectives pass through Python for good once they have been listened to.
    for pair, one in zip(pairs, results, strict=True):
        one["sent_bytes"] = sent(pair, args.size)
    if dist.get_rank() == 0:
        args.out.write_text(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()


def runs_here(pair: Pair) -> bool:
    """True where the packages of a pair are installed."""
    from pipeline.errors import UnsupportedError

    try:
        strategies.load(pair.strategy, pair.options).check()
    except UnsupportedError as error:
        print(f"{pair.strategy}: {error}", file=sys.stderr)
        return False
    if importlib.util.find_spec(pair.package) is None:
        print(f"{pair.about}: package {pair.package} is not installed", file=sys.stderr)
        return False
    return True


def table(result: Mapping[str, Any]) -> str:
    """A line on machine and model, and a Markdown table with a row for each pair."""
    at = f", {result['measured_at'][:10]}" if "measured_at" in result else ""
    hardware = result["hardware"]
    where = (
        f"On {hardware['num_cores']} cores ({hardware['cpu_model']}), {result['size']} parameters, "
        f"fp32, torch {result['torch']}{at}:"
    )
    # An older record has one number of ranks, and each reference once.
    rows = [row({"ranks": result.get("ranks")} | one) for one in result["pairs"]]
    return "\n".join([where, "", HEAD, *rows])


def row(one: Mapping[str, Any]) -> str:
    """The row of a pair."""
    options = "".join(f", `{key}` {value}" for key, value in one["options"].items())
    alike = (p for p in PAIRS if (p.strategy, p.options) == (one["strategy"], one["options"]))
    ratio, sent = one["ratio"], one["sent_bytes"]
    each = " / ".join("-" if n is None else f"{n:,.0f}" for n in sent.values())
    return (
        f"| `{one['strategy']}`{options} | {one.get('reference') or next(alike).about} | "
        f"{one['ranks']} | {one['loss_deviation']:.1e} | {ratio['median']:.3f} "
        f"[{ratio['low']:.3f}, {ratio['high']:.3f}] | {each} |"
    )


if __name__ == "__main__":
    sys.exit(main())
